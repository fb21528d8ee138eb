// plan/placement.hpp -- how a tensor lies on the axes of a mesh.
// In: a shape, the order of its memory, and a placement for each axis. Out: the blocks of it that a rank holds; no
// torch.
//
// The words are DTensor's. A tensor has a list of placements, outermost first: each says how what those before it have
// left lies on its axis. [4, 6] over two axes of two ranks, Shard{0} and then FlatShard{0, 6}:
//
//   rank 0, 0   a a a a a a   rank 1, 0   . . . . . .     the first axis divides rows, the second what is left in the
//               . . . . . .               . . . . . .     order of its memory
//   rank 0, 1   b b b b b b               c c c c c c
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <weft/core/error.hpp>

namespace weft::inline v0 {

/// Every rank of the axis has all of it.
struct Replicate {
  constexpr bool operator==(Replicate const&) const = default;
};
/// Ranks divide a dim as torch.chunk does: ceil(n / ranks) each, the last ones less or nothing. `parts`: the dim is
/// that many equal parts, each of which is divided (q, k and v of one fused Linear).
struct Shard {
  int64_t dim = 0;
  int64_t parts = 1;
  constexpr bool operator==(Shard const&) const = default;
};
/// Elements, in the order of memory, lie at [offset, offset + numel) of a flat buffer, of which rank r has
/// [r * chunk, (r + 1) * chunk).
struct FlatShard {
  int64_t offset = 0;
  int64_t chunk = 0;
  constexpr bool operator==(FlatShard const&) const = default;
};
/// Every rank has a summand of it.
struct Partial {
  constexpr bool operator==(Partial const&) const = default;
};
using Placement = std::variant<Replicate, Shard, FlatShard, Partial>;

/// An axis that a tensor's list doesn't mention replicates it.
struct AxisPlacement {
  std::string axis;
  Placement placement;
  bool operator==(AxisPlacement const&) const = default;
};

namespace plan {

/// Elements [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  constexpr int64_t size() const { return end - begin; }
  constexpr bool empty() const { return begin == end; }
  constexpr bool operator==(Range const&) const = default;
};

/// A block of a tensor: as many offsets and sizes as the tensor has dims.
struct Box {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;
  constexpr bool operator==(Box const&) const = default;
};

/// A placement, and where a rank stands on its axis.
struct Cut {
  Placement placement;
  int size = 1;
  int coordinate = 0;
};

/// "Shard(0, 3 parts)"
inline std::string describe(Placement const& placement) {
  if (auto const* const shard = std::get_if<Shard>(&placement))
    return shard->parts == 1 ? core::message("Shard(", shard->dim, ")")
                             : core::message("Shard(", shard->dim, ", ", shard->parts, " parts)");
  if (auto const* const flat = std::get_if<FlatShard>(&placement))
    return core::message("FlatShard(offset ", flat->offset, ", chunk ", flat->chunk, ")");
  return std::holds_alternative<Partial>(placement) ? "Partial" : "Replicate";
}

/// Which of a tensor's `numel` elements, in the order of memory, a coordinate keeps. An empty range lies at the
/// tensor's nearer end.
constexpr Range flat_range(FlatShard const& flat, int64_t numel, int coordinate) {
  auto const clamp = [&](int64_t at) { return std::clamp<int64_t>(at - flat.offset, 0, numel); };
  return {clamp(coordinate * flat.chunk), clamp((coordinate + 1) * flat.chunk)};
}

/// What a coordinate keeps of a dim of size n.
constexpr Range chunk_of(int64_t n, int ranks, int coordinate) {
  auto const chunk = (n + ranks - 1) / ranks;
  return {std::min(coordinate * chunk, n), std::min((coordinate + 1) * chunk, n)};
}

/// What the placements of one rank leave of a tensor: for each dim the ranges of the whole that it keeps, one behind
/// the other, and of the elements that they make together a range in the order of memory.
class Kept {
 public:
  constexpr Kept(std::vector<int64_t> const& shape, std::vector<int64_t> const& strides, std::vector<Cut> const& cuts)
      : order_(memory_order(shape, strides)) {
    for (auto const size : shape) dims_.push_back({{0, size}});
    flat_ = {0, block(0)};
    for (auto const& cut : cuts) {
      if (auto const* const shard = std::get_if<Shard>(&cut.placement)) divide(*shard, cut);
      if (auto const* const flat = std::get_if<FlatShard>(&cut.placement)) {
        auto const kept = flat_range(*flat, flat_.size(), cut.coordinate);
        flat_ = {flat_.begin + kept.begin, flat_.begin + kept.end};
        is_flat_ = true;
      }
    }
  }

  constexpr std::vector<int64_t> shape() const {
    if (is_flat_) return {flat_.size()};
    std::vector<int64_t> sizes;
    for (auto const& ranges : dims_) sizes.push_back(length(ranges));
    return sizes;
  }

  constexpr std::vector<Box> boxes() const {
    std::vector<Box> found;
    Box box{std::vector<int64_t>(dims_.size(), 0), std::vector<int64_t>(dims_.size(), 1)};
    if (is_flat_)
      walk(0, flat_, box, found);
    else if (!flat_.empty())
      combine(0, box, found);
    return found;
  }

 private:
  using Ranges = std::vector<Range>;

  static constexpr int64_t length(Ranges const& ranges) {
    int64_t sum = 0;
    for (auto const& range : ranges) sum += range.size();
    return sum;
  }
  /// Dims from the outermost in memory to the innermost. Those of size 1 have no say.
  static constexpr std::vector<std::size_t> memory_order(std::vector<int64_t> const& shape,
                                                         std::vector<int64_t> const& strides) {
    std::vector<std::size_t> order;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      auto const stride = [&](std::size_t d) { return shape[d] == 1 ? INT64_MAX : strides[d]; };
      auto at = order.size();
      while (at > 0 && stride(order[at - 1]) < stride(dim)) --at;
      order.insert(order.begin() + static_cast<std::ptrdiff_t>(at), dim);
    }
    return order;
  }
  /// Of the positions [from, to) that these ranges have together.
  static constexpr Ranges slice(Ranges const& ranges, int64_t from, int64_t to) {
    Ranges result;
    for (auto const& range : ranges) {
      auto const begin = std::max<int64_t>(from, 0), end = std::min(to, range.size());
      if (begin < end) result.push_back({range.begin + begin, range.begin + end});
      from -= range.size();
      to -= range.size();
    }
    return result;
  }

  constexpr void divide(Shard const& shard, Cut const& cut) {
    if (is_flat_)
      fail<ConfigurationError>("weft: placement ", describe(shard),
                               " stands inside of a flat one, which leaves no dims: write it before");
    if (shard.dim < 0 || shard.dim >= static_cast<int64_t>(dims_.size()))
      fail<ConfigurationError>("weft: placement ", describe(shard), " of a tensor with ", dims_.size(),
                               " dims: name a dim that it has");
    auto& ranges = dims_[static_cast<std::size_t>(shard.dim)];
    auto const size = length(ranges);
    if (shard.parts < 1 || size % shard.parts != 0)
      fail<ConfigurationError>("weft: placement ", describe(shard), " of a dim of size ", size,
                               ": its size must be a multiple of the parts");
    auto const part = size / shard.parts;
    auto const kept = chunk_of(part, cut.size, cut.coordinate);
    Ranges divided;
    for (int64_t i = 0; i < shard.parts; ++i)
      for (auto const& range : slice(ranges, i * part + kept.begin, i * part + kept.end)) {
        if (!divided.empty() && divided.back().end == range.begin)
          divided.back().end = range.end;
        else
          divided.push_back(range);
      }
    ranges = std::move(divided);
    flat_ = {0, block(0)};
  }

  constexpr Ranges const& ranges_at(std::size_t place) const { return dims_[order_[place]]; }
  /// Elements of the dims from this place in memory order on.
  constexpr int64_t block(std::size_t place) const {
    int64_t numel = 1;
    for (; place < dims_.size(); ++place) numel *= length(ranges_at(place));
    return numel;
  }
  constexpr bool is_one_box_from(std::size_t place) const {
    for (; place < dims_.size(); ++place)
      if (ranges_at(place).size() != 1) return false;
    return true;
  }
  constexpr void set(Box& box, std::size_t place, Range const& range) const {
    box.offsets[order_[place]] = range.begin;
    box.sizes[order_[place]] = range.size();
  }

  /// One box for each choice of ranges.
  constexpr void combine(std::size_t place, Box& box, std::vector<Box>& found) const {
    if (place == dims_.size()) return found.push_back(box);
    for (auto const& range : ranges_at(place)) {
      set(box, place, range);
      combine(place + 1, box, found);
    }
  }
  /// The boxes of a range of the block that begins at this place, in order, and as few as can be.
  constexpr void walk(std::size_t place, Range const& range, Box& box, std::vector<Box>& found) const {
    if (range.empty()) return;
    if (place == dims_.size()) return found.push_back(box);
    auto const step = block(place + 1);
    auto first = range.begin / step;
    auto const last = range.end / step;
    auto const inside = [&](int64_t index, int64_t begin, int64_t end) {
      set(box, place, slice(ranges_at(place), index, index + 1).front());
      walk(place + 1, {begin, end}, box, found);
    };
    if (first == last) return inside(first, range.begin - first * step, range.end - first * step);
    if (range.begin % step != 0) {
      inside(first, range.begin - first * step, step);
      ++first;
    }
    if (is_one_box_from(place + 1)) {
      for (auto const& whole : slice(ranges_at(place), first, last)) {
        for (auto inner = place + 1; inner < dims_.size(); ++inner) set(box, inner, ranges_at(inner).front());
        set(box, place, whole);
        found.push_back(box);
      }
    } else {
      for (auto index = first; index < last; ++index) inside(index, 0, step);
    }
    if (range.end % step != 0) inside(last, 0, range.end - last * step);
  }

  std::vector<std::size_t> order_;
  std::vector<Ranges> dims_;
  Range flat_{};
  bool is_flat_ = false;
};

constexpr std::vector<int64_t> row_major_strides(std::vector<int64_t> const& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (std::size_t dim = shape.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * shape[dim];
  return strides;
}

/// The shape of what a rank holds: one dim behind a FlatShard.
constexpr std::vector<int64_t> local_shape(std::vector<int64_t> const& shape, std::vector<Cut> const& cuts) {
  return Kept(shape, row_major_strides(shape), cuts).shape();
}

/// The blocks of the whole that a rank holds. `strides`: the order of the whole's memory, which is dense; the rank's
/// part keeps it. Behind a FlatShard each box holds the elements that follow the last one's, and there is no way to cut
/// the range into fewer; else there is one box for each part that a Shard divides.
constexpr std::vector<Box> boxes_of(std::vector<int64_t> const& shape, std::vector<int64_t> const& strides,
                                    std::vector<Cut> const& cuts) {
  return Kept(shape, strides, cuts).boxes();
}

/// The boxes that a range of a row-major tensor falls into. A tensor of n dims needs at most 2n - 1 (n > 0).
///
///   boxes({4, 3}, {2, 10})   . . a
///                            b b b     a = [0:1, 2:3]  b = [1:3, 0:3]  c = [3:4, 0:1]
///                            b b b
///                            c . .
constexpr std::vector<Box> boxes(std::vector<int64_t> const& shape, Range const& range) {
  if (range.empty()) return {};
  return boxes_of(shape, row_major_strides(shape), {{FlatShard{-range.begin, range.size()}, 1, 0}});
}

}  // namespace plan
}  // namespace weft
