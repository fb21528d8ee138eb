// estimates/sharded.hpp -- what FSDP and ZeRO cost.
// In: a model's sizes, an FsdpConfig, the ranks it is spread over. Out: an estimate.
#pragma once

#include <cstddef>

#include <weft/estimates/bucket_sizes.hpp>
#include <weft/estimates/reductions.hpp>
#include <weft/estimates/totals.hpp>

namespace weft::inline v0::estimates {

/// Every parameter lies on `shard` ranks, and those are repeated `replicate` times.
struct Spread {
  int replicate = 1;
  int shard = 1;
};

/// `exchanges`: reductions are weft's own over Gloo, which receives a chunk from each other rank, one of them in the
/// result.
constexpr Estimate estimate_sharded(ModelShape const& shape, FsdpConfig const& config, Spread spread,
                                    bool exchanges = true, PrecisionConfig const& precision = {}) {
  auto const& sharding = config.sharding;
  // Whoever keeps a part of anything needs that part of the gradients alone; whoever keeps everything is one of many
  // replicas.
  bool const in_parts = sharding.shard_parameters || sharding.shard_gradients || sharding.shard_optimizer;
  if (!in_parts) spread = {.replicate = spread.replicate * spread.shard, .shard = 1};
  auto const buckets = buckets_of(shape, config.bucket_bytes, spread.shard, precision);

  Estimate estimate;
  std::size_t unsharded_gradients = 0;
  bool casts = false;
  for (std::size_t bucket = 0; bucket < buckets.size(); ++bucket)
    for (auto const& group : buckets[bucket].groups) {
      if (group.layout.total() == 0) continue;
      auto const part = group.part() * group.bytes.kept, whole = group.whole() * group.bytes.computed;
      auto const gather = [&] { add(estimate.all_gather, comm::Kind::all_gather, spread.shard, whole); };
      casts = casts || group.bytes.casts;

      estimate.parameter_bytes += sharding.shard_parameters ? part : group.whole() * group.bytes.kept;
      if (sharding.shard_parameters) {
        gather();
        if (sharding.reshard_after_forward && bucket != 0) gather();  // the root stays whole until backward is over
      }
      if (!group.trained) continue;
      estimate.gradient_bytes += part;
      estimate.optimizer_bytes += part * shape.optimizer_states;
      unsharded_gradients += group.whole() * group.bytes.reduced;
      add(estimate.reduce_scatter, comm::Kind::reduce_scatter, spread.shard, group.whole() * group.bytes.reduced);
      add(estimate.all_reduce, comm::Kind::all_reduce, spread.replicate, group.part() * group.bytes.reduced);
      if (!sharding.shard_parameters) gather();  // what each rank's optimizer has made of its part
    }

  if (sharding.shard_parameters || !in_parts) estimate.gathered_peak_bytes = gathered_peak(buckets, config);
  if (spread.shard > 1 && !sharding.shard_gradients)
    estimate.reduce_peak_bytes = unsharded_gradients;
  else if (spread.shard * spread.replicate > 1 || casts)  // else gradients are autograd's own
    estimate.reduce_peak_bytes =
        Reductions(buckets, config, spread.shard > 1 && spread.replicate > 1, exchanges).peak();
  return summed(shape, precision, estimate);
}

}  // namespace weft::estimates
