// strategy/fsdp.hpp -- every rank has a part of the model; a unit is whole only while it computes.
// In: one sharding, wrap policies, Prefetch, RateLimit, Bucket, offloading, a mesh, in any order.
// Out: one FsdpPlan, which is all that shard/ reads, and the wrap policies.
#pragma once

#include <weft/plan/mesh.hpp>
#include <weft/strategy/memory.hpp>
#include <weft/strategy/schedule.hpp>
#include <weft/strategy/sharding.hpp>
#include <weft/strategy/strategy.hpp>
#include <weft/strategy/wrap.hpp>

namespace weft::inline v0 {

struct FsdpPlan {
  ShardPlan sharding{};
  OffloadPlan offload{};
  std::size_t prefetch = defaults::prefetch_units;
  std::size_t rate_limit = defaults::rate_limit_units;
  std::size_t bucket_bytes = defaults::shard_bucket_bytes;
  bool accumulate_sharded = false;
  bool operator==(FsdpPlan const&) const = default;
};

namespace strategy {

// The plan of a list of options under a sharding; FSDP and ZeRO are read alike.
template <class Options>
constexpr FsdpPlan shard_plan(ShardPlan sharding) {
  return {.sharding = sharding,
          .offload = offload_plan_v<core::policies_t<category::offload, Options>>,
          .prefetch = core::policy_or_t<category::prefetch, Options, Prefetch<defaults::prefetch_units>>::value,
          .rate_limit = core::policy_or_t<category::rate_limit, Options, RateLimit<defaults::rate_limit_units>>::value,
          .bucket_bytes = core::policy_or_t<category::bucket, Options, Bucket<defaults::shard_bucket_bytes>>::value,
          .accumulate_sharded = core::has_policy_v<category::accumulation, Options>};
}

}  // namespace strategy

template <class... Options>
struct FSDP {
  using category = weft::category::strategy;
  using options = core::TypeList<Options...>;
  using takes = core::TypeList<weft::category::sharding, weft::category::wrap, weft::category::ignore,
                               weft::category::offload, weft::category::prefetch, weft::category::rate_limit,
                               weft::category::accumulation, weft::category::bucket, weft::category::mesh>;
  static constexpr std::string_view name = "FSDP";
  static constexpr Topology topology{};

  using sharding = core::policy_or_t<weft::category::sharding, options, DefaultSharding>;
  using wrap = core::policies_t<weft::category::wrap, options>;
  using ignore = core::policies_t<weft::category::ignore, options>;
  static constexpr FsdpPlan plan = strategy::shard_plan<options>(shard_plan_v<sharding>);
};

template <class S>
inline constexpr bool is_fsdp_v = false;
template <class... Options>
inline constexpr bool is_fsdp_v<FSDP<Options...>> = true;

}  // namespace weft
