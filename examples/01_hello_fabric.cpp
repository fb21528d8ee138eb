// 01_hello_fabric.cpp -- the smallest program: one loop, distributed by a type.
//
// Write weft::Fabric<weft::SingleDevice> instead, and the same loop runs in one process.
//
// run: 2
// expect: 2 processes: w = 3.00, b = 0.50
// run: 1
// expect: 1 processes: w = 3.00, b = 0.50
#include <cstdio>
#include <cstdlib>

#include <torch/data/datasets/tensor.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>>;

int main(int argc, char** argv) {
  int const devices = argc > 1 ? std::atoi(argv[1]) : 2;

  auto outcome = Run::launch({.devices = devices}, [](Run& fabric) {
    fabric.seed_everything(7);
    auto [model, optimizer] = fabric.setup(torch::nn::Linear(1, 1), weft::SGD{.lr = 0.5});
    // Each process sees its share of the samples, in another order each epoch.
    auto loader = fabric.setup_dataloader(torch::data::datasets::TensorDataset(at::rand({512, 1})),
                                          {.batch_size = 32, .shuffle = true});

    for (int epoch = 0; epoch < 20; ++epoch)
      for (auto& batch : loader) {
        auto loss = torch::nn::functional::mse_loss(model(batch.data), 3 * batch.data + 0.5);
        fabric.backward(loss);  // gradients are averaged over the processes here
        optimizer.step();
        optimizer.zero_grad();
      }

    char line[80];
    std::snprintf(line, sizeof line, "w = %.2f, b = %.2f", model->weight.item<double>(), model->bias.item<double>());
    fabric.print(fabric.world_size(), " processes: ", line);
  });
  return outcome.exit_code();
}
