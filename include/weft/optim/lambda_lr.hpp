// optim/lambda_lr.hpp -- a learning rate that is a function of the step.
// In: an optimizer and what its rates are multiplied with. Out: the rates of each step, as PyTorch's LambdaLR has them.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <weft/core/error.hpp>

namespace weft::inline v0 {

/// LibTorch has StepLR and ReduceLROnPlateauScheduler; this is every other one.
///
///   weft::LambdaLR schedule(optimizer, [](int64_t step) { return std::min(1.0, (step + 1) / 100.0); });  // warm up
///   ... optimizer.step(); schedule.step();
///
/// Factors are of the rates that the groups have when it is made. The factor of step 0 holds at once, unlike with
/// LibTorch's StepLR, whose first step() changes nothing. The optimizer has to live as long, and gets its saved state
/// after this is made. All ranks step alike, or their weights part.
class LambdaLR final : public torch::optim::LRScheduler {
 public:
  using Factor = std::function<double(int64_t step)>;

  LambdaLR(torch::optim::Optimizer& optimizer, Factor factor)
      : LambdaLR(optimizer, std::vector<Factor>(optimizer.param_groups().size(), std::move(factor))) {}
  /// A factor for each group.
  LambdaLR(torch::optim::Optimizer& optimizer, std::vector<Factor> factors);

  /// The step whose rates hold now, and going on from one: what a checkpoint has to keep, since the rates alone don't
  /// say the first ones.
  int64_t position() const { return static_cast<int64_t>(step_count_) - 1; }
  void resume(int64_t position) {
    if (position < 0) fail<ConfigurationError>("weft: LambdaLR: position ", position, "; write 0 or more");
    step_count_ = static_cast<unsigned>(position);
    step();
  }

 private:
  std::vector<double> get_lrs() override;

  std::vector<Factor> factors_;
  std::vector<double> first_;
};

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/optim/lambda_lr.ipp>
#endif
