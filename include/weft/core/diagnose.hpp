// core/diagnose.hpp -- what messages are made of.
// In: a type. Out: its name as the compiler spells it, and what a static_assert needs to fire late and only once.
#pragma once

#include <string_view>

namespace weft::core {

// False for every T, but only known when T is: static_assert(always_false_v<T>, "weft: ...").
template <class...>
inline constexpr bool always_false_v = false;

// Looks into Checked, a class with a member value, so that its assertions speak; true whatever they say, so that one
// mistake is one error. By a concept because clang adds "not an integral constant expression" for a function whose
// body names a refused class.
template <class Checked>
concept Spoken = requires { Checked::value; } || true;

template <class T>
constexpr std::string_view type_name() {
  // g++:     constexpr std::string_view weft::core::type_name() [with T = int; std::string_view = ...]
  // clang++: std::string_view weft::core::type_name() [T = int]
  std::string_view text = __PRETTY_FUNCTION__;
  auto begin = text.find("T = ") + 4;
  auto end = text.rfind("; std::string_view = ");
  if (end == std::string_view::npos) end = text.rfind(']');
  return text.substr(begin, end - begin);
}

}  // namespace weft::core
