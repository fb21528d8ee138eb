// estimates/totals.hpp -- what an estimate says.
// In: bytes and collectives, one by one. Out: their sums.
#pragma once

#include <algorithm>
#include <cstddef>

#include <weft/comm/trace.hpp>
#include <weft/estimates/model_shape.hpp>
#include <weft/estimates/widths.hpp>

namespace weft::inline v0 {

/// Bytes on the fullest rank, in device memory or wherever an offload option puts them, and the collectives of one step
/// with one backward. Left out: activations, buffers, one gradient on its way from autograd, counters of optimizers.
struct Estimate {
  std::size_t parameter_bytes = 0;      // between steps
  std::size_t gradient_bytes = 0;       // between backward and the optimizer
  std::size_t optimizer_bytes = 0;      // from the first step on
  std::size_t gathered_peak_bytes = 0;  // parameters made whole to compute with, at most at once
  std::size_t reduce_peak_bytes =
      0;  // whole gradients on their way to gradient_bytes and what a backend receives, at most at once
  std::size_t peak_bytes = 0;          // no more than this: as if all of the above met
  std::size_t largest_unit_bytes = 0;  // the parameters of one unit

  comm::Sum all_gather;
  comm::Sum reduce_scatter;
  comm::Sum all_reduce;
  double sent_bytes = 0;  // by this rank, in rings
  bool operator==(Estimate const&) const = default;
};

namespace estimates {

constexpr void add(comm::Sum& sum, comm::Kind kind, int group_size, std::size_t bytes) {
  if (group_size <= 1) return;
  sum.count += 1;
  sum.bytes += bytes;
  sum.ring_bytes += comm::ring_bytes(kind, group_size, bytes);
}

/// Adds up what the rest says.
constexpr Estimate summed(ModelShape const& shape, PrecisionConfig const& precision, Estimate estimate) {
  for (auto const& unit : shape.units)
    estimate.largest_unit_bytes = std::max(estimate.largest_unit_bytes,
                                           kept_bytes(unit, shape.element_bytes, precision));
  estimate.peak_bytes = estimate.parameter_bytes + estimate.gradient_bytes + estimate.optimizer_bytes +
                        estimate.gathered_peak_bytes + estimate.reduce_peak_bytes;
  estimate.sent_bytes = estimate.all_gather.ring_bytes + estimate.reduce_scatter.ring_bytes +
                        estimate.all_reduce.ring_bytes;
  return estimate;
}

}  // namespace estimates

}  // namespace weft
