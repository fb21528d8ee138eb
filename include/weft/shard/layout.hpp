// shard/layout.hpp -- where each element of a flat group of parameters lies.
// In: the parameters' sizes and the number of ranks. Out: chunks, each parameter's range on each rank, the boxes it
// fills; no torch.
//
//   parameters 5, 4, 2 on 3 ranks: total 11, chunk 4, one element of padding
//
//     rank 0      rank 1      rank 2
//     a a a a     a b b b     b c c .
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft::inline v0::shard {

/// Elements [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  constexpr int64_t size() const { return end - begin; }
  constexpr bool empty() const { return begin == end; }
  constexpr bool operator==(Range const&) const = default;
};

/// A part of a tensor: as many offsets and sizes as the tensor has dims.
struct Box {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;
  bool operator==(Box const&) const = default;
};

/// The boxes that a range of a row-major tensor falls into, in order: each holds the elements that follow the last
/// one's, and there is no way to cut the range into fewer. A tensor of n dims needs at most 2n - 1 (n > 0).
///
///   boxes({4, 3}, {2, 10})   . . a
///                            b b b     a = [0:1, 2:3]  b = [1:3, 0:3]  c = [3:4, 0:1]
///                            b b b
///                            c . .
constexpr std::vector<Box> boxes(std::vector<int64_t> const& shape, Range range) {
  if (range.empty()) return {};
  if (shape.empty()) return {{}};
  std::vector<Box> result;
  for (int64_t at = range.begin; at != range.end;) {
    // The outermost dim along which a step from here stays in the range, and as many steps as the range and that dim
    // have left.
    std::size_t dim = 0;
    int64_t step = 1;
    for (std::size_t i = 1; i < shape.size(); ++i) step *= shape[i];
    for (; at % step != 0 || at + step > range.end; ++dim) step /= shape[dim + 1];
    int64_t const steps = std::min((range.end - at) / step, shape[dim] - at / step % shape[dim]);

    Box box{shape, shape};
    int64_t rest = at;
    for (std::size_t i = shape.size(); i-- > 0; rest /= shape[i]) box.offsets[i] = rest % shape[i];
    for (std::size_t i = 0; i <= dim; ++i) box.sizes[i] = i == dim ? steps : 1;
    result.push_back(std::move(box));
    at += steps * step;
  }
  return result;
}

/// What an element's address is sure to be a multiple of, if its buffer begins at one of 64. Parameters lie where the
/// ones before them end: whether a kernel may load several elements at once depends on these.
constexpr std::size_t alignment_bytes(int64_t element, std::size_t element_bytes) {
  auto const address = static_cast<std::size_t>(element) * element_bytes;
  return address == 0 ? 64 : std::min<std::size_t>(64, address & (~address + 1));
}

/// Parameters one after another, in num_ranks equal chunks; the last chunks are filled up with at most num_ranks - 1
/// elements. Rank r keeps [r * chunk, (r + 1) * chunk), so a gather in rank order is the whole.
class Layout {
 public:
  constexpr Layout(std::vector<int64_t> numels, int num_ranks) : numels_(std::move(numels)), num_ranks_(num_ranks) {
    offsets_.reserve(numels_.size());
    for (auto const numel : numels_) {
      offsets_.push_back(total_);
      total_ += numel;
    }
    chunk_ = (total_ + num_ranks - 1) / num_ranks;
  }

  constexpr std::size_t size() const { return numels_.size(); }
  constexpr int num_ranks() const { return num_ranks_; }
  constexpr int64_t total() const { return total_; }
  constexpr int64_t chunk() const { return chunk_; }
  constexpr int64_t padded() const { return chunk_ * num_ranks_; }
  constexpr int64_t padding() const { return padded() - total_; }
  constexpr int64_t numel(std::size_t parameter) const { return numels_[parameter]; }
  constexpr int64_t offset(std::size_t parameter) const { return offsets_[parameter]; }

  /// The elements of the parameter, flattened, that the rank keeps. Empty ranges lie at the parameter's nearer end.
  constexpr Range range(std::size_t parameter, int rank) const {
    auto const clamp = [&](int64_t at) { return std::clamp(at - offsets_[parameter], int64_t{0}, numels_[parameter]); };
    return {clamp(rank * chunk_), clamp((rank + 1) * chunk_)};
  }
  /// Where that range begins in the rank's chunk; 0 if it is empty.
  constexpr int64_t place(std::size_t parameter, int rank) const {
    auto const kept = range(parameter, rank);
    return kept.empty() ? 0 : offsets_[parameter] + kept.begin - rank * chunk_;
  }

 private:
  std::vector<int64_t> numels_;
  std::vector<int64_t> offsets_;
  int64_t total_ = 0;
  int64_t chunk_ = 0;
  int num_ranks_ = 1;
};

}  // namespace weft::shard
