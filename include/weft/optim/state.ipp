// optim/state.ipp -- definitions of optim/state.hpp.
#pragma once

#include <weft/optim/state.hpp>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::optim {

WEFT_INLINE std::vector<at::Tensor> state_tensors(torch::optim::Optimizer const& optimizer) {
  std::vector<at::Tensor> tensors;
  auto const add = [&tensors](at::Tensor const& tensor) {
    if (tensor.defined()) tensors.push_back(tensor);
  };
  auto const add_moments = [&add](auto const& state) {
    add(state.exp_avg());
    add(state.exp_avg_sq());
    add(state.max_exp_avg_sq());
  };
  for (auto const& [parameter, state] : optimizer.state()) {
    if (auto const* const sgd = dynamic_cast<torch::optim::SGDParamState const*>(state.get()))
      add(sgd->momentum_buffer());
    else if (auto const* const adam = dynamic_cast<torch::optim::AdamParamState const*>(state.get()))
      add_moments(*adam);
    else if (auto const* const adamw = dynamic_cast<torch::optim::AdamWParamState const*>(state.get()))
      add_moments(*adamw);
  }
  return tensors;
}

}  // namespace weft::optim
