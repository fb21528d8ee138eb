// 13_schedulers.cpp -- learning rates that change: by a function of the step, and by what the loss does.
//
// run: 2
// expect: step 1: rate 0.0250
// expect: step 4: rate 0.1000
// expect: step 12: rate 0.0000
// expect: the plateau's rate fell: true
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <string>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>>;

/// Up in four steps, down along a cosine: what LibTorch's StepLR can't say.
double warm_up_and_cosine(int64_t step) {
  return step < 4 ? static_cast<double>(step + 1) / 4
                  : 0.5 * (1 + std::cos(std::numbers::pi * static_cast<double>(step - 3) / 8));
}

template <class Optimizer>
std::string rate_of(Optimizer& optimizer) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", optimizer->param_groups()[0].options().get_lr());
  return text;
}

int main(int argc, char** argv) {
  int const devices = argc > 1 ? std::atoi(argv[1]) : 2;

  auto outcome = Run::launch({.devices = devices}, [](Run& fabric) {
    fabric.seed_everything(7);
    auto [model, optimizer] = fabric.setup(torch::nn::Linear(4, 1), weft::AdamW{.lr = 0.1});
    weft::LambdaLR schedule(optimizer, warm_up_and_cosine);  // any scheduler takes the handle
    auto const x = at::rand({8, 4});
    for (int step = 1; step <= 12; ++step) {
      fabric.backward(model(x).pow(2).mean());
      fabric.print("step ", step, ": rate ", rate_of(optimizer));
      optimizer.step();
      optimizer.zero_grad();
      schedule.step();
    }

    auto [other, other_optimizer] = fabric.setup(torch::nn::Linear(4, 1), weft::SGD{.lr = 0.4});
    torch::optim::ReduceLROnPlateauScheduler plateau(other_optimizer, torch::optim::ReduceLROnPlateauScheduler::min,
                                                     /*factor=*/0.5, /*patience=*/2,
                                                     /*threshold=*/0.05);  // less than 5 % better is a plateau
    auto const first = rate_of(other_optimizer);
    for (int step = 0; step < 40; ++step) {
      auto const loss = torch::nn::functional::mse_loss(other(x), at::ones({8, 1}) * fabric.global_rank());
      fabric.backward(loss);
      other_optimizer.step();
      other_optimizer.zero_grad();
      plateau.step(
          fabric.all_reduce(loss.item<float>()));  // the mean of all ranks: each by its own loss, they would part
    }
    fabric.print("the plateau's rate went from ", first, " to ", rate_of(other_optimizer));
    fabric.print("the plateau's rate fell: ",
                 other_optimizer->param_groups()[0].options().get_lr() < 0.4 ? "true" : "false");
  });
  return outcome.exit_code();
}
