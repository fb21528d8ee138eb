// optim/state.hpp -- what an optimizer remembers of each parameter.
// In: any optimizer with LibTorch's own states. Out: the state's tensors, and their bytes.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

namespace weft::inline v0::optim {

/// The tensors of SGD's, Adam's and AdamW's states; none for states that weft does not know.
std::vector<at::Tensor> state_tensors(torch::optim::Optimizer const& optimizer);

inline std::size_t state_bytes(torch::optim::Optimizer const& optimizer) {
  std::size_t bytes = 0;
  for (auto const& tensor : state_tensors(optimizer)) bytes += tensor.nbytes();
  return bytes;
}

}  // namespace weft::optim

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/optim/state.ipp>
#endif
