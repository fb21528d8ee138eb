// strategy/strategy.hpp -- what a strategy says about itself.
// In: a type. Out: the concept Strategy, and the two strategies that have no options.
//
// A strategy of one's own is a policy of category strategy, with a name and a value:
//
//   struct LocalSgdConfig { int every = 8; bool operator==(LocalSgdConfig const&) const = default; };
//   struct LocalSgd {
//     using category = weft::category::strategy;
//     static constexpr std::string_view name = "LocalSgd";
//     static constexpr LocalSgdConfig config{.every = 16};
//   };
//
// and, where its work is done, a specialization of weft::Mechanism<LocalSgd> (strategy/mechanism.hpp).
#pragma once

#include <concepts>

#include <weft/plan/policy.hpp>

namespace weft::inline v0 {

// What the rules of composition ask of a strategy. One that says nothing runs on several processes and may have a mesh.
struct Topology {
  bool processes = true;  // ranks are processes: a launcher and a backend make sense
  bool mesh = true;       // axes of a mesh mean something to it
  bool devices = false;   // one process has several devices
  bool operator==(Topology const&) const = default;
};

template <class S>
constexpr Topology topology_of() {
  if constexpr (requires { Topology{S::topology}; })
    return S::topology;
  else
    return {};
}

namespace strategy {

template <class S>
concept HasName = requires { std::string_view{S::name}; };
// Comparable and known to the compiler: a value that could be a template argument.
template <class S>
concept HasValue = requires {
  { S::config == S::config } -> std::convertible_to<bool>;
  typename std::bool_constant<(S::config == S::config)>;
};

}  // namespace strategy

template <class S>
concept Strategy = is_of_v<S, category::strategy> && strategy::HasName<S> && strategy::HasValue<S>;

struct NoConfig {
  bool operator==(NoConfig const&) const = default;
};

// One process, one device: what a program does that distributes nothing.
struct SingleDevice {
  using category = weft::category::strategy;
  static constexpr std::string_view name = "SingleDevice";
  static constexpr NoConfig config{};
  static constexpr Topology topology{.processes = false, .mesh = false};
};

// One process, several devices, the batch cut among them.
struct DataParallel {
  using category = weft::category::strategy;
  static constexpr std::string_view name = "DataParallel";
  static constexpr NoConfig config{};
  static constexpr Topology topology{.processes = false, .mesh = false, .devices = true};
};

}  // namespace weft
