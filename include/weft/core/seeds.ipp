// core/seeds.ipp -- definitions of core/seeds.hpp.
#pragma once

#include <weft/core/seeds.hpp>

#include <charconv>
#include <system_error>

#include <weft/core/build.hpp>

namespace weft::inline v0::core {

WEFT_INLINE std::int64_t number_in(std::string_view variable, std::string_view text) {
  std::int64_t number = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    fail<ConfigurationError>("weft: seed_everything: ", variable, " = \"", text,
                             "\" is not a whole number; correct or unset it");
  return number;
}

}  // namespace weft::core
