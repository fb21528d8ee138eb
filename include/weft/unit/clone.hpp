// unit/clone.hpp -- a clone of a unit is a unit.
// In: what Impl's own clone() makes, a plain Impl. Out: a unit around it, without hooks.
//
// LibTorch makes the deep copy, children included (they are units, and clone as such); the unit then takes a shallow
// copy of it. In a cloned parent, Cloneable's private clone_ assigns a child's Impl part only, so the unit there keeps
// what it had.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <typeinfo>

#include <c10/core/Device.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>

#include <weft/core/error.hpp>
#include <weft/unit/names.hpp>

namespace weft::inline v0::unit::detail {

using CloneDevice = std::optional<c10::Device>;

struct NoCloneable {};
template <class Derived>
std::type_identity<Derived> cloneable_of(torch::nn::Cloneable<Derived> const*);
std::type_identity<NoCloneable> cloneable_of(void const*);

// The D of the Cloneable<D> that Impl derives from: Impl itself, or (a layer derived from LinearImpl) one of its bases.
template <class Impl>
using CloneableOf = typename decltype(cloneable_of(static_cast<Impl const*>(nullptr)))::type;
template <class Impl>
inline constexpr bool is_cloneable_v = !std::is_same_v<CloneableOf<Impl>, NoCloneable>;

template <class Class>
Class cloning_class(std::shared_ptr<torch::nn::Module> (Class::*)(CloneDevice const&) const);
template <class Impl>
constexpr bool has_clone() {
  if constexpr (requires { cloning_class(&Impl::clone); })
    return !std::is_same_v<decltype(cloning_class(&Impl::clone)), torch::nn::Module>;
  else
    return true;
}

template <class Impl>
[[noreturn]] void fail_clone() {
  auto const name = shown_name(implementation_name<Impl>());
  fail<ConfigurationError>("weft: ", name, " cannot be cloned: derive ", name, "Impl from torch::nn::Cloneable<", name,
                           "Impl> and register parameters, buffers and modules in reset()");
}

template <class Self, class Impl>
std::shared_ptr<torch::nn::Module> clone_unit(Impl const& original, CloneDevice const& device) {
  if constexpr (!has_clone<Impl>() || !std::is_copy_constructible_v<Impl>) {
    fail_clone<Impl>();
  } else {
    auto const copy = original.Impl::clone(device);
    if (std::dynamic_pointer_cast<Self>(copy)) return copy;
    auto const& made = *copy;
    if (typeid(made) == typeid(Impl)) return std::make_shared<Self>(static_cast<Impl const&>(made));
    // A layer that derives from LinearImpl: LibTorch returns a LinearImpl. It would have refused if there were
    // parameters beyond it, so the rest of Impl is plain values, which LibTorch copies as well.
    using Base = CloneableOf<Impl>;
    if constexpr (is_cloneable_v<Impl> && !std::is_same_v<Base, Impl>) {
      if (typeid(made) == typeid(Base)) {
        auto unit = std::make_shared<Self>(original);
        static_cast<Base&>(*unit) = static_cast<Base const&>(made);
        return unit;
      }
    }
    fail_clone<Impl>();
  }
}

// A module in a cloned parent. LibTorch leaves a child that isn't Cloneable as the parent's reset() made it, with fresh
// weights: an error here.
template <class Impl, bool IsCloneable = is_cloneable_v<Impl>>
class InClonedParent : public Impl {
 public:
  using Impl::Impl;
  InClonedParent() = default;
  explicit InClonedParent(Impl const& original) : Impl(original) {}
};
template <class Impl>
class InClonedParent<Impl, false> : public Impl {
 public:
  using Impl::Impl;
  InClonedParent() = default;
  explicit InClonedParent(Impl const& original) : Impl(original) {}

 private:
  void clone_(torch::nn::Module&, CloneDevice const&) override { fail_clone<Impl>(); }
};

}  // namespace weft::unit::detail
