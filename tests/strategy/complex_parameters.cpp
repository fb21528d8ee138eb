// NEW-06: a complex parameter under each strategy, clipped and stepped as in one process.
#include "shard/pieces.hpp"

namespace complex_parameters {  // tests are compiled several in one file
namespace {

using namespace test;

struct WaveImpl : torch::nn::Module {
  WaveImpl() { w = register_parameter("w", at::randn({3, 5}, at::TensorOptions(at::kComplexFloat))); }
  at::Tensor forward(at::Tensor const& x) { return at::view_as_real(x.to(at::kComplexFloat).matmul(w)); }
  at::Tensor w;
};
WEFT_MODULE(Wave);

template <class Strategy>
at::Tensor trained(int world) {
  return on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
    fabric.seed_everything(4);
    auto [model, optimizer] = fabric.setup(Wave(), weft::AdamW{.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      fabric.backward(model(at::full({2, 3}, 1.0 + step)).square().mean());
      fabric.clip_gradients(model, optimizer, weft::ClipNorm{0.5});
      optimizer.step();
      optimizer.zero_grad();
    }
    return at::view_as_real(whole_weights(fabric, model).front());
  });
}

}  // namespace

TEST_CASE("NEW-06: a complex parameter is reduced, clipped and stepped as in one process", "[strategy][known]") {
  auto const want = trained<weft::SingleDevice>(1);
  for (int const world : {2, 3}) {
    CHECK(relative_difference(trained<weft::DDP<>>(world), want) < 1e-5);
    CHECK(relative_difference(trained<weft::FSDP<weft::FullShard>>(world), want) < 1e-5);
    CHECK(relative_difference(trained<weft::FSDP<weft::NoShard>>(world), want) < 1e-5);
  }
}

}  // namespace complex_parameters
