// optim/state.hpp -- what an optimizer remembers of each parameter.
// In: any optimizer with LibTorch's own states. Out: the state's tensors, and their bytes.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

namespace weft::inline v0::optim {

/// The tensors of SGD's, Adam's and AdamW's states; none for states that weft does not know.
inline std::vector<at::Tensor> state_tensors(torch::optim::Optimizer const& optimizer) {
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

inline std::size_t state_bytes(torch::optim::Optimizer const& optimizer) {
  std::size_t bytes = 0;
  for (auto const& tensor : state_tensors(optimizer)) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace weft::optim
