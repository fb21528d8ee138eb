// strategy/fsdp.hpp -- every rank has a part of the model; a unit is whole only while it computes.
// In: one sharding, wrap policies, Prefetch, RateLimit, Bucket, offloading, a mesh, in any order.
// Out: one FsdpConfig, which is all that shard/ reads, and the wrap policies.
#pragma once

#include <weft/plan/mesh.hpp>
#include <weft/strategy/activation.hpp>
#include <weft/strategy/schedule.hpp>
#include <weft/strategy/sharding.hpp>
#include <weft/strategy/strategy.hpp>
#include <weft/strategy/wrap.hpp>

namespace weft::inline v0 {

struct FsdpConfig {
  ShardConfig sharding{};
  OffloadConfig offload{};
  std::size_t prefetch = defaults::prefetch_units;
  std::size_t rate_limit = defaults::rate_limit_units;
  std::size_t bucket_bytes = defaults::shard_bucket_bytes;
  bool accumulate_sharded = false;
  bool operator==(FsdpConfig const&) const = default;
};
using FsdpPlan [[deprecated("weft: FsdpPlan is FsdpConfig now")]] = FsdpConfig;

namespace strategy {

// The config of a list of options under a sharding; FSDP and ZeRO are read alike.
template <class Options>
constexpr FsdpConfig shard_config(ShardConfig sharding) {
  return {.sharding = sharding,
          .offload = offload_config_v<plan::policies_t<category::offload, Options>>,
          .prefetch = plan::policy_or_t<category::prefetch, Options, Prefetch<defaults::prefetch_units>>::value,
          .rate_limit = plan::policy_or_t<category::rate_limit, Options, RateLimit<defaults::rate_limit_units>>::value,
          .bucket_bytes = plan::policy_or_t<category::bucket, Options, Bucket<defaults::shard_bucket_bytes>>::value,
          .accumulate_sharded = plan::has_policy_v<category::accumulation, Options>};
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
  static constexpr bool casts_parameters = true;

  using sharding = plan::policy_or_t<weft::category::sharding, options, DefaultSharding>;
  using wrap = plan::policies_t<weft::category::wrap, options>;
  using ignore = plan::policies_t<weft::category::ignore, options>;
  static constexpr FsdpConfig config = strategy::shard_config<options>(shard_config_v<sharding>);
};

template <class S>
inline constexpr bool is_fsdp_v = false;
template <class... Options>
inline constexpr bool is_fsdp_v<FSDP<Options...>> = true;

}  // namespace weft
