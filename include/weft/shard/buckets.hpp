// shard/buckets.hpp -- which units travel together.
// In: the units' sizes in the order in which the model registers them. Out: runs of neighbors, no larger than a bucket;
// no torch.
#pragma once

#include <cstddef>
#include <vector>

namespace weft::inline v0::shard {

/// A unit of sharding as grouping sees it: its own bytes, without inner units', and the unit around it (-1: the root
/// alone).
struct UnitSize {
  std::size_t bytes = 0;
  int parent = -1;
};

/// [Note: buckets are fixed at setup] Which elements a rank keeps follows from the bucket, and optimizer states and
/// files follow from that, so buckets are formed once, from the order of registration, which is the order of calls in
/// every model that runs its layers in a row. A model that does not is right all the same, only slower.
///
/// The bucket of each unit, counted from 0. Unit 0 is the root, which travels alone; later units share a bucket with
/// the one before while both lie in the same unit and the bucket has room. bucket_bytes = 0 switches sharing off.
constexpr std::vector<std::size_t> buckets(std::vector<UnitSize> const& units, std::size_t bucket_bytes) {
  std::vector<std::size_t> bucket_of;
  std::size_t next = 0, filled = 0;
  int parent = -2;  // of no unit
  for (auto const& unit : units) {
    bool const fits = bucket_bytes != 0 && unit.parent == parent && filled + unit.bytes <= bucket_bytes;
    if (!fits) {
      ++next;
      filled = 0;
    }
    bucket_of.push_back(next - 1);
    filled += unit.bytes;
    parent = unit.parent;
  }
  return bucket_of;
}

}  // namespace weft::shard
