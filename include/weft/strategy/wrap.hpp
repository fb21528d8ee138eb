// strategy/wrap.hpp -- which modules are units of sharding.
// In: module types, a size, or a predicate. Out: policies that unite: a module is a unit if any of them says so.
#pragma once

#include <weft/plan/policy.hpp>

namespace weft::inline v0 {

// WrapPolicy<TransformerBlock>: by holder (what WEFT_MODULE declares) or by its Impl.
template <class... Blocks>
struct WrapPolicy {
  using category = weft::category::wrap;
  using blocks = core::TypeList<Blocks...>;
  static constexpr std::string_view name = "WrapPolicy";
};

// Units of at least MinParams parameters, inner modules first.
template <std::size_t MinParams>
struct SizeBased {
  using category = weft::category::wrap;
  static constexpr std::string_view name = "SizeBased";
  static constexpr std::size_t min_params = MinParams;
};

// Function(module, path) -> bool, asked of each unit when the model is set up.
template <auto Function>
struct WrapIf {
  using category = weft::category::wrap;
  static constexpr std::string_view name = "WrapIf";
  static constexpr auto function = Function;
};

// Parameters inside these modules stay whole on every rank, and the strategy neither averages nor moves them.
template <class... Blocks>
struct Ignore {
  using category = weft::category::ignore;
  using blocks = core::TypeList<Blocks...>;
  static constexpr std::string_view name = "Ignore";
};

// The same for parameters: Function(name, tensor) -> bool, asked of each when the model is set up.
template <auto Function>
struct IgnoreIf {
  using category = weft::category::ignore;
  static constexpr std::string_view name = "IgnoreIf";
  static constexpr auto function = Function;
};

template <class T>
inline constexpr bool is_wrap_policy_v = is_of_v<T, category::wrap>;

// Modules written into WrapPolicy must be modules: WrapPolicy<Bf16> is a slip.
template <class T>
inline constexpr bool wraps_a_policy_v = false;
template <class... Blocks>
inline constexpr bool wraps_a_policy_v<WrapPolicy<Blocks...>> = (Policy<Blocks> || ...);

}  // namespace weft
