// estimates/replicated.hpp -- what DDP costs.
// In: a model's sizes, a DdpConfig, a number of ranks. Out: an estimate.
#pragma once

#include <algorithm>
#include <cstddef>

#include <weft/estimates/totals.hpp>
#include <weft/strategy/ddp.hpp>

namespace weft::inline v0::estimates {

/// A DDP bucket has one dtype, and is full once it holds its bytes or more. How many there are is exact if gradients
/// come unit by unit, the last one first; a root with parameters before and after its units may have one more or fewer.
/// `sent`: bytes of an element, of those in which it is reduced. What is sent in other numbers is a copy of each
/// bucket, and all may be under way at once.
constexpr Estimate estimate_ddp(ModelShape const& shape, DdpConfig const& config, PrecisionConfig const& precision,
                                std::size_t (*sent)(std::size_t), bool compresses, int num_ranks) {
  struct Filling {
    Widths bytes;
    std::size_t limit;
    std::size_t filled = 0, numel = 0;
  };
  auto const first = std::min(config.first_bucket_bytes, config.bucket_bytes);
  Filling most{widths_of(shape.element_bytes, false, precision), first},
      with_statistics{widths_of(shape.element_bytes, true, precision), first};
  bool const differ = most.bytes != with_statistics.bytes;
  Estimate estimate;
  auto const send = [&](Filling& bucket) {
    auto const bytes = bucket.numel * sent(bucket.bytes.reduced);
    add(estimate.all_reduce, comm::Kind::all_reduce, num_ranks, bytes);
    if (compresses || bucket.bytes.apart) estimate.reduce_peak_bytes += bytes;
    bucket.filled = bucket.numel = 0;
    bucket.limit = config.bucket_bytes;
  };
  for (auto i = shape.units.size(); i-- > 0;) {
    auto const& parameters = shape.units[i].parameters;
    for (auto j = parameters.size(); j-- > 0;) {
      auto& bucket = differ && parameters[j].has_statistics ? with_statistics : most;
      auto const numel = static_cast<std::size_t>(parameters[j].numel), bytes = numel * bucket.bytes.kept;
      estimate.parameter_bytes += bytes;
      if (!parameters[j].trainable) continue;
      estimate.gradient_bytes += bytes;
      bucket.filled += bytes;
      bucket.numel += numel;
      if (bucket.filled >= bucket.limit) send(bucket);
    }
  }
  for (auto* const bucket : {&most, &with_statistics})
    if (bucket->filled != 0) send(*bucket);
  estimate.optimizer_bytes = estimate.gradient_bytes * shape.optimizer_states;
  if (!config.gradients_in_buckets) estimate.reduce_peak_bytes += estimate.gradient_bytes;
  return summed(shape, precision, estimate);
}

}  // namespace weft::estimates
