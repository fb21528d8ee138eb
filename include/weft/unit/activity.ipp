// unit/activity.ipp -- definitions of unit/activity.hpp.
#pragma once

#include <weft/unit/activity.hpp>

#include <unordered_set>

#include <weft/core/build.hpp>

namespace weft::inline v0::unit {

WEFT_INLINE std::string known_units(torch::nn::Module& root) {
  std::string text;
  std::unordered_set<std::string> seen;
  for_each_unit(root, [&](std::string const& path, UnitBase& unit) {
    if (&unit.unit_module() != &root && seen.insert(unit.unit_type()).second && seen.size() <= 8)
      text += (text.empty() ? "" : ", ") + path + " (" + unit.unit_type() + ")";
  });
  return text.empty() ? "none: declare blocks with WEFT_MODULE" : text;
}

}  // namespace weft::unit
