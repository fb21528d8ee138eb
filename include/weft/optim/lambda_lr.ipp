// optim/lambda_lr.ipp -- definitions of optim/lambda_lr.hpp.
#pragma once

#include <weft/optim/lambda_lr.hpp>

#include <cmath>
#include <cstddef>

#include <weft/core/build.hpp>

namespace weft::inline v0 {

WEFT_INLINE LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, std::vector<Factor> factors)
    : LRScheduler(optimizer), factors_(std::move(factors)), first_(get_current_lrs()) {
  if (factors_.size() != first_.size())
    fail<ConfigurationError>("weft: LambdaLR: ", factors_.size(), " factors for an optimizer of ", first_.size(),
                             " parameter groups; give one for each, or one for all");
  step();
}

WEFT_INLINE std::vector<double> LambdaLR::get_lrs() {
  std::vector<double> rates;
  for (std::size_t group = 0; group < factors_.size(); ++group) {
    double const factor = factors_[group](static_cast<int64_t>(step_count_));
    if (!std::isfinite(factor))
      fail<ConfigurationError>("weft: LambdaLR: the factor of step ", step_count_, ", group ", group, ", is ", factor,
                               "; return a number");
    rates.push_back(first_[group] * factor);
  }
  return rates;
}

}  // namespace weft
