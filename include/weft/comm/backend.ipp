// comm/backend.ipp -- definitions of comm/backend.hpp.
#pragma once

#include <weft/comm/backend.hpp>
#include <weft/core/build.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE bool is_reducible(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

}  // namespace weft::comm
