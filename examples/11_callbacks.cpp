// 11_callbacks.cpp -- objects that hear what happens in a loop which doesn't know them.
//
// An event is a struct; whoever has a function on(Event const&) hears of it. What nobody hears, and what is misspelt,
// does not compile.
//
// run: 2
// expect: training a model of 2 parameters
// expect: epoch 1: loss
// expect: stopped in epoch
// expect: steps: 16 an epoch
#include <algorithm>
#include <cstdlib>
#include <limits>

#include <torch/data/datasets/tensor.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>>;

// The program's own events.
struct EpochBegin {};
struct EpochEnd {
  int epoch;
  double loss;
};

struct Printer {
  void on(weft::AfterSetup const& it, Run& fabric) {
    fabric.print("training a model of ", it.table.size(), " parameters");
  }
  void on(EpochEnd const& it, Run& fabric) { fabric.print("epoch ", it.epoch, ": loss ", it.loss); }
};

struct StepCounter {
  void on(EpochBegin const&) { steps = 0; }
  void on(weft::AfterOptimizerStep const&) { ++steps; }
  int steps = 0;
};

struct EarlyStopping {
  int patience = 2;
  double best = std::numeric_limits<double>::infinity();
  int worse = 0;

  void on(EpochEnd const& it) {
    worse = it.loss < 0.99 * best ? 0 : worse + 1;
    best = std::min(best, it.loss);
  }
  bool wants_to_stop() const { return worse >= patience; }
};

int main(int argc, char** argv) {
  int const devices = argc > 1 ? std::atoi(argv[1]) : 2;

  auto outcome = Run::launch({.devices = devices}, [](Run& fabric) {
    StepCounter counter;                                                                  // borrowed
    auto callbacks = fabric.callbacks(Printer(), counter, EarlyStopping{.patience = 3});  // the others move in
    fabric.seed_everything(7);
    auto [model, optimizer] = fabric.setup(torch::nn::Linear(1, 1), weft::SGD{.lr = 0.2});  // Printer hears of it
    auto loader = fabric.setup_dataloader(torch::data::datasets::TensorDataset(at::rand({512, 1})),
                                          {.batch_size = 16, .shuffle = true});

    auto const& stopping = callbacks.get<EarlyStopping>();
    int epoch = 0;
    while (!stopping.wants_to_stop() && epoch < 100) {
      callbacks.call(EpochBegin());
      at::Tensor sum = at::zeros({});
      for (auto& batch : loader) {
        auto loss = torch::nn::functional::mse_loss(model(batch.data), batch.data.pow(2));  // which a line does not fit
        fabric.backward(loss);
        optimizer.step();  // StepCounter hears of it
        optimizer.zero_grad();
        sum += loss.detach();
      }
      callbacks.call(EpochEnd{++epoch, fabric.all_reduce(sum.item<double>() / counter.steps)});
    }
    fabric.print("stopped in epoch ", epoch);
    fabric.print("steps: ", counter.steps, " an epoch");
  });
  return outcome.exit_code();
}
