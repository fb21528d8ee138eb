// core/fixed_string.hpp -- text that can be a template argument.
// In: a string literal. Out: a structural value, so that names of axes, strategies and paths are part of a type.
#pragma once

#include <cstddef>
#include <string_view>

namespace weft::inline v0::core {

template <std::size_t Size>
struct FixedString {
  char text[Size]{};  // public: a structural type has no private members

  constexpr FixedString() = default;
  constexpr FixedString(char const (&literal)[Size]) {
    for (std::size_t i = 0; i < Size; ++i) text[i] = literal[i];
  }

  constexpr std::size_t size() const { return Size - 1; }
  constexpr bool empty() const { return size() == 0; }
  constexpr std::string_view view() const { return {text, Size - 1}; }
  constexpr operator std::string_view() const { return view(); }

  template <std::size_t Other>
  constexpr bool operator==(FixedString<Other> const& other) const {
    return view() == other.view();
  }
};

// Names of strategies are compared as Fabric's registry does it: without regard to case, in ASCII.
constexpr char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

constexpr bool equal_ignoring_case(std::string_view left, std::string_view right) {
  if (left.size() != right.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i)
    if (lower(left[i]) != lower(right[i])) return false;
  return true;
}

}  // namespace weft::core
