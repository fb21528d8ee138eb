// precision/autocast.ipp -- definitions of precision/autocast.hpp.
#pragma once

#include <weft/precision/autocast.hpp>

#include <c10/core/DeviceType.h>
#include <c10/core/GradMode.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::precision {

WEFT_INLINE Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled)
    : device_(device),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      old_dtype_(at::autocast::get_autocast_dtype(device)),
      is_active_(true) {
  changes_dtype_ = enabled &&
                   dtype != old_dtype_;  // also behind a scope that is switched off, around which is another one
  if (changes_dtype_) forget_casts();
  at::autocast::set_autocast_enabled(device, enabled);
  if (enabled) at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::increment_nesting();
}

WEFT_INLINE Autocast::~Autocast() {
  if (!is_active_) return;
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, old_dtype_);
  bool const is_outermost = at::autocast::decrement_nesting() == 0;
  if (is_outermost || changes_dtype_ || !c10::GradMode::is_enabled()) forget_casts();  // see [Note: autocast's cache]
}

}  // namespace weft::precision
