// data/move.hpp -- batches go where the model is.
// In: a value with tensors inside. Out: the same value with every tensor on one device.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

#include <weft/core/visit.hpp>

namespace weft::data {

// Copies to a GPU do not wait for it: kernels queued later see the data. Copies to the CPU wait, since nothing else would.
inline void move_in_place(at::Tensor& tensor, at::Device device) {
  if (tensor.defined() && tensor.device() != device) tensor = tensor.to(device, tensor.scalar_type(), /*non_blocking=*/!device.is_cpu());
}

template <class Value>
Value move_to(Value value, at::Device device) {
  for_each_leaf<at::Tensor>(value, [device](at::Tensor& tensor) { move_in_place(tensor, device); });
  return value;
}

}  // namespace weft::data
