// report/json.hpp -- text and numbers as JSON writes them.
// In: a value. Out: its JSON.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

namespace weft::inline v0::report {

/// The shortest text that reads back as the same number, counts as integers; nan, inf and -inf for those.
inline std::string shortest(double value) {
  if (std::isnan(value)) return "nan";  // to_chars shows the sign of one
  if (value != 0 && std::abs(value) < 1e15 && value == std::trunc(value))
    return std::to_string(static_cast<long long>(value));
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

inline std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (char const letter : text) {
    if (letter == '"' || letter == '\\') {
      quoted += {'\\', letter};
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      std::array<char, 8> code;
      std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(letter));
      quoted += code.data();
    } else {
      quoted += letter;
    }
  }
  return quoted + "\"";
}

/// JSON knows finite numbers only; others are text.
inline std::string json_number(double value) {
  return std::isfinite(value) ? shortest(value) : json_text(shortest(value));
}

}  // namespace weft::report
