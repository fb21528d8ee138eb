// strategy/ddp.hpp -- every rank has the whole model; gradients are averaged in buckets.
// In: Bucket, CommHook, FindUnused, StaticGraph, BroadcastBuffers, GradientsInBuckets, in any order.
// Out: one DdpConfig, which is all that data_parallel/ reads, and the hook.
#pragma once

#include <weft/strategy/schedule.hpp>
#include <weft/strategy/strategy.hpp>

namespace weft::inline v0 {

struct DdpConfig {
  std::size_t bucket_bytes = defaults::ddp_bucket_bytes;
  std::size_t first_bucket_bytes = defaults::ddp_first_bucket_bytes;
  bool find_unused = false;
  bool static_graph = false;
  bool broadcast_buffers = true;
  bool gradients_in_buckets = true;
  bool operator==(DdpConfig const&) const = default;
};
using DdpPlan [[deprecated("weft: DdpPlan is DdpConfig now")]] = DdpConfig;

template <class... Options>
struct DDP {
  using category = weft::category::strategy;
  using options = core::TypeList<Options...>;
  using takes = core::TypeList<weft::category::bucket, weft::category::comm_hook, weft::category::find_unused,
                               weft::category::static_graph, weft::category::broadcast_buffers,
                               weft::category::gradients_in_buckets>;
  static constexpr std::string_view name = "DDP";
  static constexpr Topology topology{.mesh = false};
  static constexpr bool keeps_parameters_unsharded = true;

 private:
  using bucket = plan::policy_or_t<weft::category::bucket, options,
                                   Bucket<defaults::ddp_bucket_bytes, defaults::ddp_first_bucket_bytes>>;

 public:
  using hook = typename plan::policy_or_t<weft::category::comm_hook, options, CommHook<DefaultHook>>::hook;
  static constexpr DdpConfig config{
      .bucket_bytes = bucket::value,
      .first_bucket_bytes = bucket::first,
      .find_unused = plan::has_policy_v<weft::category::find_unused, options>,
      .static_graph = plan::has_policy_v<weft::category::static_graph, options>,
      .broadcast_buffers = plan::policy_or_t<weft::category::broadcast_buffers, options, BroadcastBuffers<true>>::value,
      .gradients_in_buckets =
          plan::policy_or_t<weft::category::gradients_in_buckets, options, GradientsInBuckets<true>>::value};
};

template <class S>
inline constexpr bool is_ddp_v = false;
template <class... Options>
inline constexpr bool is_ddp_v<DDP<Options...>> = true;

}  // namespace weft
