// estimates/estimate.hpp -- what a strategy costs, before anything runs.
// In: a model's sizes, the policies of a Fabric, a number of ranks. Out: bytes that a rank holds and sends, collectives
// of a step; no torch.
//
//   constexpr weft::ModelShape model() {
//     return {.units = {{.parameters = {{4096 * 512}}}, {.parent = 0, .parameters = {{512 * 512}}}}};
//   }
//   using Sharded = weft::FSDP<weft::FullShard, weft::WrapPolicy<Block>>;
//   static_assert(weft::estimate<Sharded>(model(), 8).peak_bytes < 40_GiB);
#pragma once

#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>
#include <vector>

#include <weft/estimates/replicated.hpp>
#include <weft/estimates/sharded.hpp>
#include <weft/plan/grid.hpp>
#include <weft/strategy/composition.hpp>

namespace weft::inline v0 {

/// What a strategy costs: a strategy specializes it with `static constexpr Estimate of(ModelShape, EstimateContext)`.
/// One around another one asks StrategyEstimate<Inner> of what its own axes leave of shape and ranks.
template <class S>
struct StrategyEstimate {
  static constexpr bool weft_no_estimate = true;
};

/// What an estimate depends on beside the strategy and the model.
struct EstimateContext {
  struct Axis {
    std::string_view name;
    int extent;
  };
  int num_ranks = 1;  // that the strategy has: all, or what those around it leave
  std::vector<Axis> axes{};
  PrecisionConfig precision{};
  bool exchanges = true;  // reductions are weft's own over Gloo

  /// Ranks along an axis of the mesh; 1 if it has none of this name.
  constexpr int extent(std::string_view name) const {
    for (auto const& axis : axes)
      if (axis.name == name) return axis.extent;
    return 1;
  }
  /// As parameters are kept, which is what computes where a strategy casts none itself.
  constexpr PrecisionConfig as_kept() const {
    return {.stored = precision.stored,
            .computed = precision.stored,
            .reduced = precision.reduced,
            .buffers = precision.buffers};
  }
};

namespace estimates {

/// How parameters lie over the ranks.
constexpr Spread spread_of(FsdpConfig const& config, EstimateContext const& context) {
  if (config.sharding.replicate) return {.replicate = context.extent("replicate"), .shard = context.extent("shard")};
  return {.shard = context.num_ranks};
}

}  // namespace estimates

template <>
struct StrategyEstimate<SingleDevice> {
  static constexpr Estimate of(ModelShape const& shape, EstimateContext const& context) {
    return estimates::estimate_sharded(shape, {.sharding = NoShard::config}, {}, true, context.as_kept());
  }
};

template <class... Options>
struct StrategyEstimate<DDP<Options...>> {
  using Hook = typename DDP<Options...>::hook;
  static constexpr bool knows_hook = requires { Hook::sent_bytes(std::size_t{4}); };
  static constexpr Estimate of(ModelShape const& shape, EstimateContext const& context) {
    if constexpr (knows_hook)
      return estimates::estimate_ddp(shape, DDP<Options...>::config, context.as_kept(), &Hook::sent_bytes,
                                     Hook::sends_copies, context.num_ranks);
    else
      return {};  // refused
  }
};

/// FSDP, ZeRO, and any other strategy that an FsdpConfig says all of.
template <class S>
  requires requires {
    { S::config } -> std::same_as<FsdpConfig const&>;
  }
struct StrategyEstimate<S> {
  static constexpr Estimate of(ModelShape const& shape, EstimateContext const& context) {
    return estimates::estimate_sharded(shape, S::config, estimates::spread_of(S::config, context), context.exchanges,
                                       context.precision);
  }
};

namespace estimates {

// Estimates are of policies as Fabric takes them, or of the Fabric.
template <class... Policies>
struct CompositionOf {
  using type = Composition<Policies...>;
};
template <class... Policies>
struct CompositionOf<Fabric<Policies...>> {
  using type = Composition<Policies...>;
};

template <class C>
struct AssertEstimated {
  using Known = StrategyEstimate<typename C::strategy>;
  static constexpr bool knows_strategy = !requires { Known::weft_no_estimate; };
  static constexpr bool knows_hook = !requires { requires !Known::knows_hook; };
  static constexpr bool value = true;

  static_assert(
      knows_strategy,
      "weft: estimate<...> knows SingleDevice, DDP, FSDP and ZeRO, alone or in Fabric<...>: name one of them");
  static_assert(knows_hook,
                "weft: estimate<DDP<CommHook<...>>> knows what AllReduce, Bf16Compress and Fp16Compress send: leave "
                "another hook out");
};

template <class C>
constexpr EstimateContext context_of(int num_ranks) {
  EstimateContext context{.num_ranks = num_ranks,
                          .precision = C::precision::config,
                          .exchanges = !talks_by_nccl_v<typename C::backend, typename C::device>};
  if constexpr (!std::is_same_v<typename C::mesh, DefaultMesh>) {
    auto const grid = resolve<typename C::mesh>(num_ranks);
    for (std::size_t i = 0; i < grid.names().size(); ++i) context.axes.push_back({grid.names()[i], grid.extents()[i]});
  }
  return context;
}

}  // namespace estimates

/// estimate<FSDP<FullShard, WrapPolicy<Block>>>(shape, 8), also of several policies, or of the program's own
/// Fabric<...>. num_ranks may be left out where the mesh says it, and for strategies of one process.
template <class... Policies>
constexpr Estimate estimate(ModelShape const& shape,
                            int num_ranks = estimates::CompositionOf<Policies...>::type::world) {
  using C = typename estimates::CompositionOf<Policies...>::type;
  using Known = StrategyEstimate<typename C::strategy>;
  static_assert(C::check());
  static_assert(core::Reported<estimates::AssertEstimated<C>>);
  if constexpr (!topology_of<typename C::strategy>().processes) num_ranks = 1;
  estimates::check(shape, num_ranks);
  if constexpr (requires { Known::of(shape, EstimateContext()); })
    return Known::of(shape, estimates::context_of<C>(num_ranks));
  else
    return {};  // refused above
}

}  // namespace weft
