// precision/autocast.hpp -- each operation picks its dtype.
// In: a device and a dtype. Out: a scope in which LibTorch casts the operands of matrix products down and those of sums
// and losses up.
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/ScalarType.h>

namespace weft::inline v0::precision {

/// [Note: autocast's cache] Within a scope LibTorch keeps cast copies of weights, by the weight alone. They must not be
/// used once the weight has another value (an optimizer's step calls forget_casts), once gradients are wanted that the
/// copy, made without, has no graph for, or in an inner scope of another dtype. LibTorch drops them at the end of the
/// outermost scope only. tests/precision/autocast.cpp
inline void forget_casts() { at::autocast::clear_cache(); }

/// While it lives, operations of this thread on this kind of device are autocast, or with `enabled` false are not.
class [[nodiscard]] Autocast {
 public:
  /// A scope that changes nothing.
  Autocast() = default;
  Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled = true);
  ~Autocast();
  Autocast(Autocast const&) = delete;
  Autocast& operator=(Autocast const&) = delete;

 private:
  c10::DeviceType device_ = c10::DeviceType::CPU;
  bool was_enabled_ = false;
  c10::ScalarType old_dtype_ = c10::ScalarType::Undefined;
  bool is_active_ = false;
  bool changes_dtype_ = false;
};

}  // namespace weft::precision

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/precision/autocast.ipp>
#endif
