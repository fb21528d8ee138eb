// core/diagnose.hpp -- what messages are made of.
// In: a type. Out: its name as the compiler spells it, and what a static_assert needs to fire late and only once.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace weft::inline v0::core {

// False for every T, but only known when T is: static_assert(always_false_v<T>, "weft: ...").
template <class...>
inline constexpr bool always_false_v = false;

// Looks into Checked, a class with a member value, so that its assertions speak; true whatever they say, so that one
// mistake is one error. By a concept because clang adds "not an integral constant expression" for a function whose
// body names a refused class.
template <class Checked>
concept Reported = requires { Checked::value; } || true;

// Weft lies in an inline namespace, so that programs may hold two versions; its name is no part of what a user writes
// or reads.
inline constexpr std::string_view version_namespace = "v0::";

template <class T>
constexpr std::string_view spelled_name() {
  // g++:     constexpr std::string_view weft::core::spelled_name() [with T = int; std::string_view = ...]
  // clang++: std::string_view weft::core::spelled_name() [T = int]
  std::string_view text = __PRETTY_FUNCTION__;
  auto begin = text.find("T = ") + 4;
  auto end = text.rfind("; std::string_view = ");
  if (end == std::string_view::npos) end = text.rfind(']');
  return text.substr(begin, end - begin);
}

template <class T>
inline constexpr auto name_without_version = [] {
  constexpr auto spelled = spelled_name<T>();
  std::array<char, spelled.size() + 1> name{};  // ends with a 0 at least
  std::size_t size = 0;
  for (std::size_t i = 0; i < spelled.size();)
    if (spelled.substr(i).starts_with(version_namespace) && spelled.substr(0, i).ends_with("weft::"))
      i += version_namespace.size();
    else
      name[size++] = spelled[i++];
  return name;
}();

template <class T>
constexpr std::string_view type_name() {
  return name_without_version<T>.data();
}

}  // namespace weft::core
