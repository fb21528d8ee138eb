// shard/layout.hpp -- where each element of a flat group of parameters lies.
// In: the parameters' sizes and the number of ranks. Out: chunks, each parameter's range on each rank; no torch.
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

#include <weft/plan/placement.hpp>

namespace weft::inline v0::shard {

using plan::Range;

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
