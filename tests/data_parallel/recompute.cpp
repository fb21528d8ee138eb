#include "ranks.hpp"
#include "same.hpp"

#include <weft/activation/recompute.hpp>
#include <weft/nn/linear.hpp>

using namespace test;
using weft::ActivationCheckpointing;

namespace {

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    up = register_module("up", torch::nn::Linear(6, 9));
    down = register_module("down", torch::nn::Linear(9, 6));
  }
  at::Tensor forward(at::Tensor const& x) { return down(at::dropout(up(x).tanh(), 0.2, is_training())); }
  torch::nn::Linear up = nullptr, down = nullptr;
};
WEFT_MODULE(Layer);

struct LayersImpl : torch::nn::Module {
  explicit LayersImpl(bool recomputes) : recomputes_(recomputes) {
    list = register_module("list", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) list->push_back(Layer());
    sometimes = register_module("sometimes", Layer());
  }
  at::Tensor forward(at::Tensor const& x, bool skips) {
    auto h = x;
    for (auto const& module : *list) {
      auto const run = [module](at::Tensor const& t) { return module->as<Layer>()->forward(t); };
      h = recomputes_ ? weft::checkpoint(run, h) : run(h);
    }
    return skips ? h : sometimes(h);
  }
  torch::nn::ModuleList list = nullptr;
  Layer sometimes = nullptr;

 private:
  bool recomputes_;
};
TORCH_MODULE(Layers);

template <class Strategy, class... Policies>
std::vector<at::Tensor> trained(int world, bool recomputes, bool skips) {
  using Fabric = weft::Fabric<Strategy, weft::On<weft::Cpu>, Policies...>;
  auto outcome = Fabric::launch({.devices = world}, [recomputes, skips](Fabric& fabric) {
    fabric.seed_everything(3 + static_cast<std::uint64_t>(fabric.global_rank()));
    auto [model, optimizer] = fabric.setup(Layers(recomputes), weft::AdamW{.lr = 0.01});
    for (int step = 0; step < 3; ++step) {
      for (bool const last : {false, true}) {
        auto const guard = fabric.no_backward_sync(model, !last);
        fabric.backward(model(torch::randn({4, 6}), skips && step == 0).pow(2).mean());
      }
      fabric.clip_gradients(model, optimizer, weft::ClipNorm{0.1});
      optimizer.step();
      optimizer.zero_grad();
    }
    std::vector<at::Tensor> weights;
    for (auto const& parameter : model.parameters()) weights.push_back(parameter.detach().clone());
    weights.push_back(torch::rand({3}));
    return weights;
  });
  if (!outcome) FAIL(outcome.failures().front().message);
  return std::move(*outcome);
}

template <class Strategy>
void compare(std::vector<int> const& worlds, bool skips = false) {
  for (int const world : worlds) {
    INFO("world " << world);
    auto const kept = trained<Strategy>(world, false, skips);
    check_same(trained<Strategy>(world, true, skips), kept);
    check_same(trained<Strategy, ActivationCheckpointing<Layer>>(world, false, skips), kept);
  }
}

}  // namespace

TEST_CASE("checkpointed blocks train to the bits of plain ones on a single device and under each variant of DDP",
          "[ddp][recompute]") {
  compare<weft::SingleDevice>({1}, true);
  compare<weft::DDP<>>({1, 2, 3, 4});
  compare<weft::DDP<weft::Bucket<200, 100>>>({2});
  compare<weft::DDP<weft::FindUnused>>({2, 3}, true);
  compare<weft::DDP<weft::StaticGraph>>({2});
  compare<weft::DDP<weft::GradientsInBuckets<false>>>({2});
}
