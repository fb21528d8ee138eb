#include "ranks.hpp"
using namespace test;
namespace {
struct Scaled {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Scaled";
  static constexpr weft::PrecisionPlan plan{.loss_scaling = true, .scaling = {.initial_scale = 2}};
};
}
TEST_CASE("smoke") {
  using Run = weft::Fabric<weft::SingleDevice, weft::On<weft::Cpu>, weft::Bf16Mixed>;
  auto o = Run::launch([](Run& fabric) {
    auto [model, optimizer] = fabric.setup(torch::nn::Linear(3, 2), weft::SGD{.lr = 0.1});
    auto y = model(at::ones({2, 3}));
    expect(y.scalar_type() == at::kFloat, "fp32 out");
    fabric.backward(y.sum());
    expect(optimizer.step(), "steps");
  });
  if (!o) FAIL(o.failures().front().message);
  using Run2 = weft::Fabric<weft::SingleDevice, weft::On<weft::Cpu>, Scaled>;
  auto o2 = Run2::launch([](Run2& fabric) {
    auto [model, optimizer] = fabric.setup(torch::nn::Linear(3, 2), weft::SGD{.lr = 0.1});
    auto y = model(at::ones({2, 3}));
    fabric.backward(y.sum() * INFINITY);
    expect(!optimizer.step(), "skips");
    expect(fabric.loss_scaler().scale() == 1, "halved");
  });
  if (!o2) FAIL(o2.failures().front().message);
}
TEST_CASE("smoke ddp") {
  using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>, weft::Bf16>;
  auto o = Run::launch({.devices=2},[](Run& fabric) {
    auto [model, optimizer] = fabric.setup(torch::nn::Linear(3, 2), weft::SGD{.lr = 0.1});
    expect(model->weight.scalar_type() == at::kBFloat16, "stored");
    auto y = model(at::ones({2, 3}));
    expect(y.scalar_type() == at::kFloat, "fp32 out");
    fabric.backward(y.sum());
    expect(optimizer.step(), "steps");
  });
  if (!o) FAIL(o.failures().front().message);
}
