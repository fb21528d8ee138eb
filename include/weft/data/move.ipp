// data/move.ipp -- definitions of data/move.hpp.
#pragma once

#include <weft/data/move.hpp>

#include <c10/core/StreamGuard.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::data {

WEFT_INLINE void move_in_place(at::Tensor& tensor, at::Device device) {
  if (tensor.defined() && tensor.device() != device)
    tensor = tensor.to(device, tensor.scalar_type(), /*non_blocking=*/!device.is_cpu());
}

WEFT_INLINE auto SideStream::depart(std::vector<at::Tensor*> const& tensors) -> std::unique_ptr<Flight> {
  auto flight = std::make_unique<Copies>(device_);
  {
    c10::StreamGuard const on_side(side_);
    for (at::Tensor* tensor : tensors) {
      move_in_place(*tensor, device_);
      flight->tensors.push_back(*tensor);
    }
  }
  flight->done.record(side_);
  return flight;
}

WEFT_INLINE void SideStream::Copies::arrive() {
  c10::impl::VirtualGuardImpl const backend(device.type());
  auto const computing = backend.getStream(device);
  done.block(computing);
  for (at::Tensor const& tensor : tensors)
    if (tensor.has_storage()) backend.recordDataPtrOnStream(tensor.storage().data_ptr(), computing);
}

}  // namespace weft::data
