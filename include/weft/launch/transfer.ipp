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

}  // namespace weft::launch
