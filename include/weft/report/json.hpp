// report/json.hpp -- text and numbers as JSON writes them.
// In: a value. Out: its JSON.
#pragma once

#include <cmath>
#include <string>
#include <string_view>

namespace weft::inline v0::report {

/// The shortest text that reads back as the same number, counts as integers; nan, inf and -inf for those.
std::string shortest(double value);

std::string json_text(std::string_view text);

/// JSON knows finite numbers only; others are text.
inline std::string json_number(double value) {
  return std::isfinite(value) ? shortest(value) : json_text(shortest(value));
}

}  // namespace weft::report

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/report/json.ipp>
#endif
