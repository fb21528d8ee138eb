// report/json.ipp -- definitions of report/json.hpp.
#pragma once

#include <weft/report/json.hpp>

#include <array>
#include <charconv>
#include <cstdio>

#include <weft/core/build.hpp>

namespace weft::inline v0::report {

WEFT_INLINE std::string shortest(double value) {
  if (std::isnan(value)) return "nan";  // to_chars shows the sign of one
  if (value != 0 && std::abs(value) < 1e15 && value == std::trunc(value))
    return std::to_string(static_cast<long long>(value));
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

WEFT_INLINE std::string json_text(std::string_view text) {
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

}  // namespace weft::report
