// estimates/reductions.hpp -- whole gradients in a backward pass.
// In: the buckets of a model. Out: the most bytes of whole gradients that there are at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <weft/estimates/bucket_sizes.hpp>

namespace weft::inline v0::estimates {

/// Whole gradients in a backward pass, in bytes. Each has its own memory when it arrives; those of one group are copied
/// into one piece when all are there, or, of a unit around others, when the first arrives from before those. Parameters
/// that are not cut have theirs copied at once, into what is handed out if that is in the same numbers. Reductions have
/// buffers of their own. The engine's rules: shard/sharding_engine.hpp, gradient_arrived().
class Reductions {
 public:
  constexpr Reductions(std::vector<BucketSizes> const& buckets, FsdpConfig const& config, bool replicates,
                       bool exchanges)
      : buckets_(buckets),
        limit_(std::max<std::size_t>(2, config.rate_limit)),
        replicates_(replicates),
        exchanges_(exchanges) {}

  constexpr std::size_t peak() {
    std::vector<std::size_t> open;
    for (auto const bucket : backward_order(buckets_)) {
      for (; !open.empty() && !is_around(buckets_, open.back(), bucket); open.pop_back()) start(open.back());
      open.push_back(bucket);
      for (auto const& group : buckets_[bucket].groups) hold(arrived(group));
    }
    for (; !open.empty(); open.pop_back()) start(open.back());
    return peak_;
  }

 private:
  struct UnderWay {
    std::size_t bucket;
    bool whole = true;
  };

  constexpr void hold(std::size_t bytes) { peak_ = std::max(peak_, held_ += bytes); }
  static constexpr bool is_cut(GroupSizes const& group) { return group.layout.num_ranks() > 1; }
  /// In one piece.
  static constexpr std::size_t whole(GroupSizes const& group) {
    return group.trained && (is_cut(group) || group.bytes.apart) ? group.whole() * group.bytes.reduced : 0;
  }
  /// What is there of a unit around others while those are in backward.
  static constexpr std::size_t arrived(GroupSizes const& group) {
    return is_cut(group) ? group.first_arrived * group.bytes.computed : group.first_arrived > 0 ? whole(group) : 0;
  }
  constexpr std::size_t buffers(GroupSizes const& group) const {
    return exchanges_ && group.trained ? group.part() * group.bytes.reduced *
                                             static_cast<std::size_t>(std::max(0, group.layout.num_ranks() - 2))
                                       : 0;
  }
  /// What was added up, until it is handed out in other numbers.
  static constexpr std::size_t sum(GroupSizes const& group) {
    return group.trained && is_cut(group) && group.bytes.apart ? group.part() * group.bytes.reduced : 0;
  }

  constexpr void start(std::size_t bucket) {
    auto const& groups = buckets_[bucket].groups;
    if (std::none_of(groups.begin(), groups.end(), [](auto const& group) { return group.trained; })) return;
    if (replicates_ && !under_way_.empty())
      drop_unsharded(under_way_.back());  // averaged over the replicas now, in parts
    while (under_way_.size() > (replicates_ ? limit_ - 1 : limit_ - 2)) finish();
    for (auto const& group : groups) {
      if (is_cut(group)) {
        hold(whole(group));
        held_ -= arrived(group);
      } else {
        hold(whole(group) - arrived(group));
      }
      hold(sum(group) + buffers(group));
    }
    under_way_.push_back({bucket});
  }
  constexpr void drop_unsharded(UnderWay& reduction) {
    if (std::exchange(reduction.whole, false))
      for (auto const& group : buckets_[reduction.bucket].groups) held_ -= whole(group) + buffers(group);
  }
  constexpr void finish() {
    drop_unsharded(under_way_.front());
    for (auto const& group : buckets_[under_way_.front().bucket].groups) held_ -= sum(group);
    under_way_.erase(under_way_.begin());
  }

  std::vector<BucketSizes> const& buckets_;
  std::size_t limit_;
  bool replicates_;
  bool exchanges_;
  std::vector<UnderWay> under_way_{};
  std::size_t held_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace weft::estimates
