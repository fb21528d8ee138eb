// estimates/bucket_sizes.hpp -- the buckets that a sharding makes of a model.
// In: a model's sizes. Out: its buckets, the order in which they are unsharded, and what is unsharded at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <weft/estimates/widths.hpp>
#include <weft/shard/buckets.hpp>
#include <weft/shard/layout.hpp>
#include <weft/strategy/fsdp.hpp>

namespace weft::inline v0::estimates {

/// Parameters of a bucket that travel together.
struct GroupSizes {
  shard::Layout layout;
  Widths bytes;
  bool trained = true;
  std::size_t first_arrived = 0;  // elements whose gradients arrive before those of units inside

  constexpr std::size_t part() const { return static_cast<std::size_t>(layout.chunk()); }
  constexpr std::size_t whole() const { return static_cast<std::size_t>(layout.padded()); }
};

/// What a bucket of units makes of its parameters: those that are trained and those that are not travel apart.
struct BucketSizes {
  std::vector<GroupSizes> groups;
  std::size_t around = 0;  // the bucket of the unit around; the root's is its own

  /// Bytes that are there while it is unsharded, and not else.
  constexpr std::size_t gathered() const {
    std::size_t bytes = 0;
    for (auto const& group : groups)
      if (group.layout.num_ranks() > 1 || group.bytes.casts) bytes += group.whole() * group.bytes.computed;
    return bytes;
  }
};

constexpr std::vector<BucketSizes> buckets_of(ModelShape const& shape, std::size_t bucket_bytes, int num_ranks,
                                              PrecisionConfig const& precision) {
  std::vector<shard::UnitSize> sizes;
  for (auto const& unit : shape.units) sizes.push_back({kept_bytes(unit, shape.element_bytes, precision), unit.parent});
  bool const differ = widths_of(shape.element_bytes, true, precision) !=
                      widths_of(shape.element_bytes, false, precision);
  auto const bucket_of = buckets(sizes, bucket_bytes);
  std::vector<BucketSizes> result;
  for (std::size_t i = 0; i < shape.units.size();) {
    auto const parent = shape.units[i].parent;
    auto const bucket = bucket_of[i];
    struct Found {
      std::vector<int64_t> numels{};
      std::size_t first_arrived = 0;
    };
    std::vector<Found> found(4);  // trained or not, with statistics or without
    auto const of = [&](bool trained, bool has_statistics) -> Found& { return found[trained * 2u + has_statistics]; };
    for (; i < shape.units.size() && bucket_of[i] == bucket; ++i)
      for (std::size_t p = 0; p < shape.units[i].parameters.size(); ++p) {
        auto const& parameter = shape.units[i].parameters[p];
        auto& group = of(parameter.trainable, differ && parameter.has_statistics);
        group.numels.push_back(parameter.numel);
        if (parameter.trainable && p >= shape.units[i].before_inner)
          group.first_arrived += static_cast<std::size_t>(parameter.numel);
      }
    auto& made = result.emplace_back(
        BucketSizes{.groups = {}, .around = parent < 0 ? 0 : bucket_of[static_cast<std::size_t>(parent)]});
    for (bool const trained : {true, false})
      for (bool const has_statistics : {false, true})
        if (auto& group = of(trained, has_statistics); !group.numels.empty())
          made.groups.push_back({shard::Layout(std::move(group.numels), num_ranks),
                                 widths_of(shape.element_bytes, has_statistics, precision), trained,
                                 group.first_arrived});
  }
  return result;
}

/// Whether bucket `outer` is `inner`, or around it. The root is around all.
constexpr bool is_around(std::vector<BucketSizes> const& buckets, std::size_t outer, std::size_t inner) {
  while (inner != outer && inner != 0) inner = buckets[inner].around;
  return inner == outer;
}

/// Buckets in the order in which backward enters them: units around others before those, later ones before earlier
/// ones.
constexpr std::vector<std::size_t> backward_order(std::vector<BucketSizes> const& buckets) {
  std::vector<std::size_t> order, around;
  std::vector<char> is_in(buckets.size(), false);  // clang 14 evaluates no vector<bool>
  for (std::size_t i = buckets.size(); i-- > 0;) {
    for (auto at = i; !is_in[at]; at = buckets[at].around) {
      around.push_back(at);
      is_in[at] = true;
    }
    for (; !around.empty(); around.pop_back()) order.push_back(around.back());
  }
  return order;
}

/// The most bytes that are whole at once while buckets are entered in this order: the one that computes, those around
/// it, and the next ones, as many as may be gathered ahead.
constexpr std::size_t widest(std::vector<BucketSizes> const& buckets, std::vector<std::size_t> const& order,
                             FsdpConfig const& config) {
  std::size_t widest = 0;
  for (std::size_t first = 0; first < order.size(); ++first) {
    std::size_t bytes = buckets[0].gathered(), num_unsharded = 0;
    for (auto at = order[first]; at != 0; at = buckets[at].around, ++num_unsharded) bytes += buckets[at].gathered();
    auto const ahead = std::min(config.prefetch, config.rate_limit - std::min(config.rate_limit, num_unsharded));
    for (std::size_t next = first + 1; next < order.size() && next <= first + ahead; ++next)
      bytes += buckets[order[next]].gathered();
    widest = std::max(widest, bytes);
  }
  return widest;
}

constexpr std::size_t gathered_peak(std::vector<BucketSizes> const& buckets, FsdpConfig const& config) {
  if (!config.sharding.reshard_after_forward) {
    std::size_t sum = 0;
    for (auto const& bucket : buckets) sum += bucket.gathered();
    return sum;
  }
  std::vector<std::size_t> forward_order;
  for (std::size_t i = 0; i < buckets.size(); ++i) forward_order.push_back(i);
  return std::max(widest(buckets, forward_order, config), widest(buckets, backward_order(buckets), config));
}

}  // namespace weft::estimates
