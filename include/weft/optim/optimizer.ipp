// optim/optimizer.ipp -- definitions of optim/optimizer.hpp.
#pragma once

#include <weft/optim/optimizer.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::optim {

WEFT_INLINE void zero_grad(std::vector<at::Tensor> const& parameters, bool set_to_none) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> kept;
  for (at::Tensor const& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    at::Tensor& gradient = parameter.mutable_grad();
    if (set_to_none) {
      gradient.reset();
      continue;
    }
    if (gradient.requires_grad()) gradient = gradient.detach();  // shares memory, so a bucket is zeroed too
    kept.push_back(gradient);
  }
  if (!kept.empty()) at::_foreach_zero_(kept);
}

WEFT_INLINE std::vector<at::Tensor> parameters_of(torch::optim::Optimizer const& optimizer) {
  std::vector<at::Tensor> all;
  for (auto const& group : optimizer.param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

}  // namespace weft::optim
