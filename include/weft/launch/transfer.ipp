// launch/transfer.ipp -- definitions of launch/transfer.hpp.
#pragma once

#include <weft/launch/transfer.hpp>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::launch {

WEFT_INLINE std::string_view Reader::take(std::size_t count) {
  if (count > bytes_.size())
    fail<LaunchError>("weft: a transferred value ends after ", bytes_.size(), " bytes, expected ", count,
                      " more; ranks run different programs?");
  auto const taken = bytes_.substr(0, count);
  bytes_.remove_prefix(count);
  return taken;
}

WEFT_INLINE void members_differ(std::size_t sent, std::size_t here) {
  fail<LaunchError>("weft: a transferred struct has ", sent, " members by its weft_visit, and ", here,
                    " where it has just been constructed; let weft_visit hand on the same members always (a "
                    "std::optional for one that may be missing)");
}

}  // namespace weft::launch
