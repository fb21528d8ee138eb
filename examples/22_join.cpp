// 22_join.cpp -- ranks with unequal numbers of batches, none dropped and none repeated.
//
// Without a join DDP waits for a rank that has no more batches until its time is up. Inside of fabric.join such a rank
// answers the others with zeros until all are through; then all have the model and the optimizer of those that went on
// longest.
//
// run: 3
// expect: batches of each rank: 4 3 3
// expect: samples seen: 10 of 10
// expect: largest difference between ranks' weights: 0
// run: 2
// expect: batches of each rank: 5 5
// expect: samples seen: 10 of 10
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <torch/data/datasets/tensor.h>
#include <torch/nn/modules/linear.h>

#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>>;

int main(int argc, char** argv) {
  auto outcome = Run::launch({.devices = argc > 1 ? std::atoi(argv[1]) : 3}, [](Run& fabric) {
    fabric.seed_everything(7);
    auto [model, optimizer] = fabric.setup(torch::nn::Linear(2, 1), weft::AdamW{.lr = 0.1});
    // Uneven::keep: each sample once. Of 10 samples in batches of one, three ranks get 4, 3 and 3.
    auto loader = fabric.setup_dataloader(torch::data::datasets::TensorDataset(at::rand({10, 2})),
                                          {.batch_size = 1, .shuffle = true, .uneven = weft::data::Uneven::keep});

    int batches = 0;
    fabric.join(model, optimizer, [&](auto& model, auto& optimizer) {
      for (auto& batch : loader) {
        fabric.backward(model(batch.data).square().mean());
        optimizer.step();
        optimizer.zero_grad();
        ++batches;
      }
    });

    std::string line = "batches of each rank:";
    for (int const count : fabric.all_gather(batches)) line += " " + std::to_string(count);
    fabric.print(line);
    fabric.print("samples seen: ", fabric.all_reduce(batches, weft::ReduceOp::sum), " of 10");
    auto const weights = fabric.all_gather(model->weight);
    fabric.print("largest difference between ranks' weights: ", (weights - weights[0]).abs().max().item<double>());
  });
  return outcome.exit_code();
}
