// unit/names.hpp -- a unit is shown by its user's name.
// In: a module's type. Out: "Block" where LibTorch would print weft::Unit<BlockImpl, ...>.
#pragma once

#include <ostream>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>

#include <weft/core/diagnose.hpp>

namespace weft::inline v0::unit::detail {
struct NameDoor;
}

namespace torch::nn {
// name() isn't virtual and would show the unit's type; the name is private, but Module befriends every Cloneable.
template <>
class Cloneable<weft::unit::detail::NameDoor> {
 public:
  static void name_if_unnamed(Module& module, std::string name) {
    if (!module.name_) module.name_ = std::move(name);
  }
};
}  // namespace torch::nn

namespace weft::inline v0::unit {

template <class Impl>
std::string implementation_name() {
  auto name = c10::demangle(typeid(Impl).name());
  auto const versioned = "weft::" + std::string(core::version_namespace);
  for (auto at = name.find(versioned); at != name.npos; at = name.find(versioned, at))
    name.erase(at + 6, core::version_namespace.size());
  return name;
}

// "my::BlockImpl" -> "my::Block"; what is in an unnamed namespace has its short name, as in its file: "my::(anonymous
// namespace)::BlockImpl" -> "Block"
std::string shown_name(std::string name);

namespace detail {

template <class Class>
Class declaring_class(void (Class::*)(std::ostream&) const);

// Whether a layer says itself how it is printed, as Linear does.
template <class Impl>
constexpr bool prints_itself() {
  if constexpr (requires { declaring_class(&Impl::pretty_print); })
    return !std::is_same_v<decltype(declaring_class(&Impl::pretty_print)), torch::nn::Module>;
  else
    return true;
}

}  // namespace detail
}  // namespace weft::unit

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/unit/names.ipp>
#endif
