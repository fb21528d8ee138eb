#include "pieces.hpp"

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::FSDP, weft::FullShard, weft::ShardGradOp, weft::NoShard, weft::Bucket, weft::WrapPolicy, weft::ClipNorm,
    weft::ClipValue;

namespace {

using Floats = std::vector<float>;

/// root { a, b }: weights of any size, each with the gradient that the test says; empty: none.
struct GivenImpl : torch::nn::Module {
  explicit GivenImpl(int64_t numel) { w = register_parameter("w", torch::ones({numel})); }
  at::Tensor forward(at::Tensor const& gradient) { return (w * gradient).sum(); }
  at::Tensor w;
};
WEFT_MODULE(Given);
struct GivensImpl : torch::nn::Module {
  GivensImpl(std::size_t of_a, std::size_t of_b) {
    a = register_module("a", Given(static_cast<int64_t>(of_a)));
    b = register_module("b", Given(static_cast<int64_t>(of_b)));
    own = register_parameter("own", torch::ones({1}));
  }
  at::Tensor forward(Floats const& of_a, Floats const& of_b) {
    auto result = torch::zeros({});
    if (!of_a.empty()) result = result + a(torch::tensor(of_a));
    if (!of_b.empty()) result = result + b(torch::tensor(of_b));
    return result;
  }
  Given a = nullptr, b = nullptr;
  at::Tensor own;  // never used
};
TORCH_MODULE(Givens);

template <class Sharding>
using Sharded = FSDP<Sharding, WrapPolicy<Given>, Bucket<1>>;

template <class Function>
void for_each_sharding(Function const& f) {
  for_each_strategy<Sharded<FullShard>, FSDP<FullShard, WrapPolicy<Given>>, Sharded<ShardGradOp>, Sharded<NoShard>>(f);
}

/// The norms of all ranks, and the whole gradients of a and b after clipping; gradients are the same on all ranks.
template <class Strategy>
std::pair<at::Tensor, std::vector<at::Tensor>> clipped(int world, Floats const& of_a, Floats const& of_b,
                                                       ClipNorm clip) {
  return on_ranks<Strategy>(world, [&](Run<Strategy>& fabric) {
    auto [model, optimizer] = fabric.setup(
        Givens(std::max<std::size_t>(1, of_a.size()), std::max<std::size_t>(1, of_b.size())), weft::SGD{.lr = 1.0});
    fabric.backward(model(of_a, of_b));
    auto const norms = fabric.all_gather(fabric.clip_gradients(model, optimizer, clip));
    return std::pair(norms, unsharded_gradients(model));
  });
}

double const infinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("NUM-10: the norm is the whole model's, on every rank, and gradients are scaled by it", "[shard][known]") {
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    for (int world : {1, 2, 3, 4}) {
      auto const [norms, gradients] = clipped<Strategy>(
          world, {3, 4}, {}, {1.0});  // one element a rank at world 2, none on some at worlds 3 and 4
      CHECK(norms.eq(5.0).all().template item<bool>());
      REQUIRE(gradients[1].defined());
      CHECK(relative_difference(gradients[1], torch::tensor({0.6f, 0.8f})) < 1e-5);
      CHECK(!gradients[0].defined());
      CHECK(!gradients[2].defined());
    }
  });
}

TEST_CASE("NUM-11: norms of every order over shards: the largest value, sums and roots", "[shard][known]") {
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    for (int world : {1, 2, 3})
      for (auto const& [order, expected] : std::vector<std::pair<double, double>>{
               {infinity, 4}, {1, 7}, {2, 5}, {0.5, std::pow(std::sqrt(3.0) + 2, 2)}}) {
        INFO("world " << world << ", order " << order);
        for (auto const& [of_a, of_b] :
             std::vector<std::pair<Floats, Floats>>{{{3, -4}, {}}, {{3}, {-4}}, {{0, 0, 0, 3}, {0, 0, -4}}}) {
          auto const [norms, gradients] = clipped<Strategy>(world, of_a, of_b,
                                                            {.max_norm = expected / 2, .norm_type = order});
          CHECK((norms - expected).abs().max().template item<double>() < 1e-4 * expected);
          CHECK(gradients[1].abs().max().template item<double>() <= 2.001);
          CHECK(std::abs(gradients[1].sum().template item<double>() +
                         (of_b.empty() ? 0 : gradients[2].sum().template item<double>()) + 0.5) < 1e-4);  // (3 - 4) / 2
        }
      }
  });
}

TEST_CASE("what is not above the limit keeps its bits", "[shard]") {
  auto const [norms, gradients] = clipped<Sharded<FullShard>>(3, {3, 4}, {12}, {.max_norm = 13.1});
  CHECK(norms.eq(13.0).all().item<bool>());
  CHECK(gradients[1].equal(torch::tensor({3.f, 4.f})));
  CHECK(gradients[2].equal(torch::tensor({12.f})));
}

TEST_CASE("NUM-12: a norm that is not finite: every rank throws before any gradient is changed, or returns it",
          "[shard][known]") {
  float const inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for_each_sharding([&]<class Strategy>(std::type_identity<Strategy>) {
    for (int world : {1, 2, 3})
      for (float bad : {inf, nan})
        for (double order : {2.0, infinity, 1.0}) {
          INFO("world " << world << ", " << bad << ", order " << order);
          auto const seen = on_ranks<Strategy>(world, [=](Run<Strategy>& fabric) {
            auto [model, optimizer] = fabric.setup(Givens(4, 3), weft::SGD{.lr = 1.0});
            fabric.backward(model(Floats{1, 2, 3, bad}, Floats{5, 6, 7}));  // in the last rank's part alone
            auto const message = message_of([&, &model = model, &optimizer = optimizer] {
              fabric.clip_gradients(model, optimizer, ClipNorm{.max_norm = 1.0, .norm_type = order});
            });
            expect(contains(message, "gradients are not finite and were left as they are"),
                   "an error on every rank, not " + message);
            expect(unsharded_gradients(model)[2].equal(torch::tensor({5.f, 6.f, 7.f})), "gradients as they were");
            return fabric.all_gather(fabric.clip_gradients(
                model, optimizer, ClipNorm{.max_norm = 1.0, .norm_type = order, .error_if_nonfinite = false}));
          });
          CHECK((std::isnan(bad) ? seen.isnan() : seen.isinf()).all().template item<bool>());
        }
  });
}

TEST_CASE("by value, each element of each part; parameters without gradient are left out", "[shard]") {
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    for (int world : {1, 2, 4}) {
      auto const gradients = on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
        auto [model, optimizer] = fabric.setup(Givens(3, 2), weft::SGD{.lr = 1.0});
        fabric.clip_gradients(model, optimizer, ClipValue{0.5});  // nothing yet
        expect(fabric.clip_gradients(model, optimizer, ClipNorm{0.5}).template item<double>() == 0, "no norm");
        fabric.backward(model(Floats{0.1f, -3, 0.7f}, Floats{}));
        fabric.clip_gradients(model, optimizer, ClipValue{0.5});
        return unsharded_gradients(model);
      });
      CHECK(gradients[1].equal(torch::tensor({0.1f, -0.5f, 0.5f})));
      CHECK(!gradients[2].defined());
    }
  });
}

TEST_CASE("the norm is of the optimizer's parameters alone", "[shard]") {
  auto const norms = on_ranks<Sharded<FullShard>>(2, [](Run<Sharded<FullShard>>& fabric) {
    auto model = fabric.setup(Givens(2, 2));
    auto only_a = fabric.setup_optimizers(
        model, weft::SGD{.lr = 1.0,
                         .groups = {{.when = [](std::string_view name, at::Tensor const&) { return name != "a.w"; },
                                     .skip = true}}});
    fabric.backward(model(Floats{3, 4}, Floats{100, 100}));
    return fabric.all_gather(fabric.clip_gradients(model, only_a, ClipNorm{1.0}));
  });
  CHECK(norms.equal(torch::full({2}, 5.0f)));
}

namespace {
struct BesideImpl : torch::nn::Module {
  BesideImpl() { w = register_parameter("w", torch::ones({1})); }
  at::Tensor forward(at::Tensor const& x) { return w * x; }
  at::Tensor w;
};
WEFT_MODULE(Beside);
struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    w = register_parameter("w", torch::ones({2}));
    beside = register_module("beside", Beside());
  }
  at::Tensor forward(double factor) {
    return (w * torch::tensor({3.0, 4.0}).to(w.dtype())).sum() + beside(torch::full({1}, factor)).sum();
  }
  at::Tensor w;
  Beside beside = nullptr;
};
TORCH_MODULE(Normed);
}  // namespace

TEST_CASE("NEW-13: with ignored parameters, whose gradients are each rank's own, norms are equal on all ranks",
          "[shard][known]") {
  using Strategy = weft::FSDP<weft::FullShard, weft::Ignore<Beside>>;
  for (int const world : {1, 2, 3})
    for (double const type : {2.0, double(INFINITY)})
      CHECK(on_ranks<Strategy>(world, [=](Run<Strategy>& fabric) {
              auto [model, optimizer] = fabric.setup(Normed(), weft::SGD{.lr = 1.0});
              fabric.backward(model(fabric.global_rank() == 0 ? 12.0 : 1.0));
              auto const norm = fabric.clip_gradients(model, optimizer,
                                                      weft::ClipNorm{.max_norm = 1.0, .norm_type = type});
              auto const want = type == 2.0 ? 13.0 : 12.0;  // 3, 4 and the largest of 12 and 1
              expect(std::abs(norm.template item<double>() - want) < 1e-4, "the norm");
              expect(std::abs(model->beside->w.grad().template item<double>() -
                              (fabric.global_rank() == 0 ? 12.0 : 1.0) / want) < 1e-4,
                     "all gradients are scaled alike");
              return 1;
            }) == 1);
}
