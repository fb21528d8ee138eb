#include "ranks.hpp"

#include <weft/unit/recompute.hpp>

using namespace test;

namespace {

struct BlocksImpl : torch::nn::Module {
  explicit BlocksImpl(bool recomputes) : recomputes_(recomputes) {
    list = register_module("list", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i)
      list->push_back(torch::nn::Sequential(torch::nn::Linear(6, 9), torch::nn::Tanh(), torch::nn::Dropout(0.2), torch::nn::Linear(9, 6)));
  }
  at::Tensor forward(at::Tensor const& x) {
    auto h = x;
    for (auto const& module : *list) {
      auto const run = [module](at::Tensor const& t) { return module->as<torch::nn::Sequential>()->forward(t); };
      h = recomputes_ ? weft::checkpoint(run, h) : run(h);
    }
    return h;
  }
  torch::nn::ModuleList list = nullptr;

 private:
  bool recomputes_;
};
TORCH_MODULE(Blocks);

template <class Strategy>
std::vector<at::Tensor> trained(int world, bool recomputes) {
  return on_ranks<Strategy>(world, [recomputes](Run<Strategy>& fabric) {
    fabric.seed_everything(3 + fabric.global_rank());
    auto [model, optimizer] = fabric.setup(Blocks(recomputes), weft::AdamW{.lr = 0.01});
    for (int step = 0; step < 3; ++step) {
      for (bool const last : {false, true}) {
        auto const guard = fabric.no_backward_sync(model, !last);
        fabric.backward(model(torch::randn({4, 6})).pow(2).mean());
      }
      fabric.clip_gradients(model, optimizer, weft::ClipNorm{0.1});
      optimizer.step();
      optimizer.zero_grad();
    }
    std::vector<at::Tensor> weights;
    for (auto const& parameter : model.parameters()) weights.push_back(parameter.detach().clone());
    return weights;
  });
}

template <class Strategy>
void compare(std::vector<int> const& worlds) {
  for (int const world : worlds) {
    auto const kept = trained<Strategy>(world, false), again = trained<Strategy>(world, true);
    REQUIRE(kept.size() == again.size());
    for (std::size_t i = 0; i < kept.size(); ++i) CHECK(again[i].equal(kept[i]));
  }
}

}  // namespace

TEST_CASE("checkpointed blocks train to the bits of plain ones on a single device and under each variant of DDP", "[ddp][recompute]") {
  compare<weft::SingleDevice>({1});
  compare<weft::DDP<>>({2, 3});
  compare<weft::DDP<weft::Bucket<200, 100>>>({2});
  compare<weft::DDP<weft::FindUnused>>({2});
  compare<weft::DDP<weft::StaticGraph>>({2});
  compare<weft::DDP<weft::GradientsInBuckets<false>>>({2});
}
