// comm/streams.ipp -- definitions of comm/streams.hpp.
#pragma once

#include <weft/comm/streams.hpp>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE void used_on_current_stream(at::Tensor const& tensor) {
  if (!tensor.is_cuda()) return;
  c10::impl::VirtualGuardImpl const device(tensor.device().type());
  device.recordDataPtrOnStream(tensor.storage().data_ptr(), device.getStream(tensor.device()));
}

}  // namespace weft::comm
