// consumer.cpp -- somebody else's program, built with what weft installs: tests/packaging/checks.py says how.
// In: the flags of pkg-config, CMake or Meson. Out: a line that says what came through; status 0.
#include <iostream>
#include <vector>

#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <weft/comm/gloo.hpp>
#include <weft/version.hpp>

#ifdef WITH_TRAINING  // weft.hpp costs the compiler most, so one build of three takes it
#include <torch/nn/modules/linear.h>

#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

bool trains() {
  using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>>;
  auto outcome = Run::launch({.devices = 2}, [](Run& fabric) {
    auto [model, optimizer] = fabric.setup(torch::nn::Linear(2, 1), weft::SGD{.lr = 0.1});
    fabric.backward(model(at::ones({1, 2})).sum());
    optimizer.step();
  });
  return outcome.exit_code() == 0;
}
#else
bool trains() { return true; }
#endif

int main() {
  if (!trains()) return 1;
  auto backend = weft::comm::BackendFactory<weft::Gloo>::create({.store = c10::make_intrusive<c10d::HashStore>()});
  std::vector<at::Tensor> tensors{at::full({3}, 2.0)};
  backend->allreduce(tensors)->wait();
  std::cout << "weft " << weft::version << " by " << backend->getBackendName() << ": "
            << tensors[0].sum().item<double>() << "\n";
  return tensors[0].sum().item<double>() == 6 ? 0 : 1;
}
