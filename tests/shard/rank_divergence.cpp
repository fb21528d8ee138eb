#include "models.hpp"

using Catch::Matchers::ContainsSubstring;
using namespace test;

namespace {

/// Takes one of two branches.
struct ForkImpl : torch::nn::Module {
  ForkImpl() {
    a = register_module("a", torch::nn::Linear(5, 5));
    b = register_module("b", torch::nn::Linear(5, 5));
  }
  at::Tensor forward(at::Tensor const& x, bool first) { return first ? a(x) : b(x); }
  torch::nn::Linear a = nullptr, b = nullptr;
};
WEFT_MODULE(Fork);

struct ForkedImpl : torch::nn::Module {
  ForkedImpl() {
    fork = register_module("fork", Fork());
    in = register_module("in", torch::nn::Linear(5, 5));
  }
  at::Tensor forward(at::Tensor const& x, bool first) { return fork(in(x), first); }
  Fork fork = nullptr;
  torch::nn::Linear in = nullptr;
};
TORCH_MODULE(Forked);

using Full = weft::FSDP<weft::FullShard, weft::WrapPolicy<Fork>>;

template <class Function>
void for_each_order(Function const& f) {
  f(std::type_identity<weft::FSDP<weft::FullShard, weft::WrapPolicy<Fork>, weft::Bucket<1>>>());
  f(std::type_identity<weft::FSDP<weft::ShardGradOp, weft::WrapPolicy<Fork>, weft::Bucket<1>>>());
  f(std::type_identity<weft::FSDP<weft::NoShard, weft::WrapPolicy<Fork>, weft::Bucket<1>>>());
}

}  // namespace

TEST_CASE("NUM-22: ranks that take different branches get an error that names them, not a hang", "[shard][known]") {
  auto const message = failure_on_ranks<Full>(2, [](Run<Full>& fabric) {
    auto [model, optimizer] = fabric.setup(Forked(), weft::SGD{.lr = 0.1});
    fabric.backward(model(torch::ones({2, 5}), fabric.global_rank() == 0).sum());
    optimizer.step();
  });
  CHECK_THAT(message, ContainsSubstring("no gradient arrived for"));
  CHECK_THAT(message, ContainsSubstring("fork.a.weight"));
  CHECK_THAT(message, ContainsSubstring("fork.b.weight"));
}

TEST_CASE("ranks that change the branch together go on; one that changes alone is an error", "[shard]") {
  CHECK(on_ranks<Full>(2, [](Run<Full>& fabric) {
          auto [model, optimizer] = fabric.setup(Forked(), weft::SGD{.lr = 0.1});
          for (bool first : {true, true, false, true}) {
            fabric.backward(model(torch::ones({2, 5}), first).sum());
            expect(model->fork->a->weight.grad().defined() == first && model->fork->b->weight.grad().defined() != first,
                   "gradients where the branch went");
            optimizer.step();
            optimizer.zero_grad();
          }
          return 1;
        }) == 1);
  auto const message = failure_on_ranks<Full>(2, [](Run<Full>& fabric) {
    auto [model, optimizer] = fabric.setup(Forked(), weft::SGD{.lr = 0.1});
    fabric.backward(model(torch::ones({2, 5}), true).sum());
    optimizer.zero_grad();
    fabric.backward(model(torch::ones({2, 5}), fabric.global_rank() == 0).sum());
  });
  CHECK_THAT(message, ContainsSubstring("the ranks' losses use different parameters"));
}

namespace {

/// Two units of one size, in the order that it is told.
struct EitherWayImpl : torch::nn::Module {
  EitherWayImpl() {
    a = register_module("a", Fork());
    b = register_module("b", Fork());
  }
  at::Tensor forward(at::Tensor const& x, bool a_first) { return a_first ? b(a(x, true), true) : a(b(x, true), true); }
  Fork a = nullptr, b = nullptr;
};
TORCH_MODULE(EitherWay);

}  // namespace

TEST_CASE(
    "ranks that run units of one size in different orders get an error before anybody steps; together they may change "
    "it",
    "[shard]") {
  for_each_order([]<class Strategy>(std::type_identity<Strategy>) {
    auto const message = failure_on_ranks<Strategy>(3, [](Run<Strategy>& fabric) {
      auto [model, optimizer] = fabric.setup(EitherWay(), weft::SGD{.lr = 0.1});
      for (int step = 0; step < 3; ++step) {
        fabric.backward(model(torch::ones({2, 5}), step != 1 || fabric.global_rank() != 1).sum());
        if (step == 1) expect(false, "no rank gets here");
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    CHECK_THAT(message, ContainsSubstring("ran its units in the order the root, b (Fork), a (Fork); rank 2 in the "
                                          "order the root, a (Fork), b (Fork)") &&
                            ContainsSubstring("rank 1 "));
    CHECK(on_ranks<Strategy>(3, [](Run<Strategy>& fabric) {
      auto [model, optimizer] = fabric.setup(EitherWay(), weft::SGD{.lr = 0.1});
      for (int step = 0; step < 4; ++step) {
        fabric.backward(model(torch::ones({2, 5}), step % 2 == 0).sum());
        optimizer.step();
        optimizer.zero_grad();
      }
      return 1;
    }));
  });
}
