// strategy/derived.hpp -- strategies made of strategies.
// In: other strategies. Out: one recorded before it runs (Lazy), or one picked from several (Auto).
#pragma once

#include <weft/strategy/strategy.hpp>

namespace weft::inline v0 {

// Operations are recorded and compiled as a whole, as on XLA devices; Inner says how ranks share the work.
template <class Inner>
struct Lazy {
  using category = weft::category::strategy;
  using inner = Inner;
  static constexpr std::string_view name = "Lazy";
  static constexpr NoConfig config{};
  static constexpr Topology topology = topology_of<Inner>();
  static constexpr bool is_built = false;
};

// The cheapest of Strategies that fits.
template <class... Strategies>
struct Auto {
  using category = weft::category::strategy;
  using strategies = core::TypeList<Strategies...>;
  static constexpr std::string_view name = "Auto";
  static constexpr NoConfig config{};
  static constexpr Topology topology{};
  static constexpr bool is_built = false;
};

}  // namespace weft
