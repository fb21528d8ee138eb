// unit/names.ipp -- definitions of unit/names.hpp.
#pragma once

#include <weft/unit/names.hpp>

#include <string_view>

#include <weft/core/build.hpp>

namespace weft::inline v0::unit {

WEFT_INLINE std::string shown_name(std::string name) {
  constexpr std::string_view anonymous = "(anonymous namespace)::";
  for (auto at = name.find(anonymous); at != std::string::npos; at = name.find(anonymous)) {
    auto const first =
        at == 0 ? 0
                : name.find_last_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:", at - 1) + 1;
    name.erase(first, at + anonymous.size() - first);
  }
  constexpr std::string_view suffix = "Impl";
  if (name.size() > suffix.size() && name.ends_with(suffix) && !name.ends_with("::Impl"))
    name.resize(name.size() - suffix.size());
  return name;
}

}  // namespace weft::unit
