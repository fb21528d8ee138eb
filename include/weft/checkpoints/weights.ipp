// checkpoints/weights.ipp -- definitions of checkpoints/weights.hpp.
#pragma once

#include <weft/checkpoints/weights.hpp>

#include <cstddef>

#include <ATen/ops/equal.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::checkpoints {

WEFT_INLINE std::string listed(std::vector<std::string> const& names) {
  constexpr std::size_t most = 12;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

}  // namespace weft::checkpoints
