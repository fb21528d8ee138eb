// NEW-01: what is registered, replaced or removed after setup is told of in the next forward that trains, under each
// strategy.
#include "shard/pieces.hpp"

namespace module_changes {  // tests are compiled several in one file
namespace {

using namespace test;
using weft::DDP, weft::FSDP, weft::FullShard, weft::NoShard, weft::WrapPolicy;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    block = register_module("block", Piece(9));
    out = register_module("out", torch::nn::Linear(3, 1));
  }
  at::Tensor forward(at::Tensor const& x) {
    auto const h = block(x);
    return out(extra.defined() ? h * extra : h);
  }
  void replace() { out = replace_module("out", torch::nn::Linear(3, 1)); }
  void remove() { unregister_module("block"); }
  void add() { extra = register_parameter("extra", at::ones({3})); }
  void add_inside() { block->register_parameter("bias", at::zeros({2})); }
  void name_again() { register_module("again", block); }
  Piece block = nullptr;
  torch::nn::Linear out = nullptr;
  at::Tensor extra;
};
TORCH_MODULE(Net);

template <class Strategy>
void check(int world, void (NetImpl::*change)(), std::string const& text) {
  INFO(weft::name_of<Strategy>() << ": " << text);
  CHECK(on_ranks<Strategy>(world, [=](Run<Strategy>& fabric) {
          auto [model, optimizer] = fabric.setup(Net(), weft::SGD{.lr = 0.1});
          auto const x = at::ones({2, 3});
          fabric.backward(model(x).sum());
          optimizer.step();
          optimizer.zero_grad();
          ((*model).*change)();
          std::string said;
          try {
            model(x);
          } catch (std::exception const& error) {
            said = error.what();
          }
          expect(contains(said, text), "not: " + said);
          return 1;
        }) == 1);
}

template <class Strategy>
void check_all(int world) {
  check<Strategy>(world, &NetImpl::replace, "parameter out.weight was replaced since setup");
  check<Strategy>(world, &NetImpl::remove, "parameter block.w was removed since setup");
  check<Strategy>(world, &NetImpl::add, "parameter extra was registered since setup");
  check<Strategy>(world, &NetImpl::add_inside, "parameter block.bias was registered since setup");
  check<Strategy>(world, &NetImpl::name_again, "registered under further names");
}

}  // namespace

TEST_CASE("NEW-01: a module that changes after setup is told of in the next forward that trains", "[strategy][known]") {
  check_all<weft::SingleDevice>(1);
  check_all<DDP<>>(2);
  check_all<DDP<weft::FindUnused>>(2);
  check_all<FSDP<FullShard, Pieces>>(2);
  check_all<FSDP<NoShard, Pieces>>(2);
}

TEST_CASE("NEW-01: a forward that does not train may see a module that has changed", "[strategy]") {
  CHECK(on_ranks<DDP<>>(2, [](Run<DDP<>>& fabric) {
          auto [model, optimizer] = fabric.setup(Net(), weft::SGD{.lr = 0.1});
          model->replace();
          at::NoGradGuard const no_grad;
          model(at::ones({2, 3}));
          return 1;
        }) == 1);
}

}  // namespace module_changes
