// strategy/strategy.hpp -- what a strategy says about itself.
// In: a type. Out: the concept Strategy, what rules ask of one, and the two strategies that have no options.
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
//
// What else it may say. Rules of composition ask these values, never which strategy it is:
//
//   using inner = Inner;                   the strategy inside of it; rules look through to that one
//   using options = core::TypeList<...>;   what is written inside of it, and
//   using takes = core::TypeList<...>;     the categories of which it takes policies there
//   topology                               a Topology, below
//   keeps_parameters_unsharded = true      and uses them as they are stored
//   casts_parameters = true                to what a precision computes in, where it unshards them
//   needs_plan = true                      among its options, for the axis "tensor_parallel"
//   config.sharding                        a ShardConfig; one that replicates reads the axes "replicate" and "shard"
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
struct InnerOf {
  using type = void;
};
template <class S>
  requires requires { typename S::inner; }
struct InnerOf<S> {
  using type = typename S::inner;
};

}  // namespace strategy

/// The strategy inside of S, void if there is none.
template <class S>
using inner_of_t = typename strategy::InnerOf<S>::type;

namespace strategy {

template <class S>
struct WithInner {
  using type = core::concat_t<core::TypeList<S>, typename WithInner<inner_of_t<S>>::type>;
};
template <>
struct WithInner<void> {
  using type = core::TypeList<>;
};
// S and the strategies inside of it, from the outside in.
template <class S>
using with_inner_t = typename WithInner<S>::type;

// What one strategy says, by itself; a value that is missing, or known too late, counts as false.
template <class S>
concept KeepsParametersUnsharded = requires { requires std::bool_constant<S::keeps_parameters_unsharded>::value; };
template <class S>
concept CastsParameters = requires { requires std::bool_constant<S::casts_parameters>::value; };
template <class S>
concept NeedsPlan = requires { requires std::bool_constant<S::needs_plan>::value; };
// Its config says how it shards; IsHybrid: over one axis of the mesh, repeated over another.
template <class S>
concept HasSharding = requires { typename std::bool_constant<S::config.sharding.replicate>; };
template <class S>
concept IsHybrid = requires { requires std::bool_constant<S::config.sharding.replicate>::value; };

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
  static constexpr bool keeps_parameters_unsharded = true;
};

// One process, several devices, the batch cut among them.
struct DataParallel {
  using category = weft::category::strategy;
  static constexpr std::string_view name = "DataParallel";
  static constexpr NoConfig config{};
  static constexpr Topology topology{.processes = false, .mesh = false, .devices = true};
  static constexpr bool keeps_parameters_unsharded = true;
};

}  // namespace weft
