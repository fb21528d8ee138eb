// shard/reduction_queue.hpp -- reductions that overlap with backward.
// In: buckets whose gradients are all there. Out: the same, reduced, with a bounded number of them whole at once.
#pragma once

#include <cstddef>
#include <deque>

#include <weft/shard/bucket.hpp>

namespace weft::inline v0::shard {

/// Whole gradients have at most the memory of `rate_limit` buckets, and of two at least: those that arrive, and those
/// that are copied into one piece, among them. Units around others come on top.
class ReductionQueue {
 public:
  void make_room(std::size_t rate_limit, Axes const& axes) {
    bool const in_parts = axes.shard && axes.replicate;  // averaged over the replicas: not whole any more
    if (in_parts && !under_way_.empty()) reduce_over_replicas(*under_way_.back());
    auto const limit = rate_limit < 2 ? 2 : rate_limit;
    while (under_way_.size() > (in_parts ? limit - 1 : limit - 2)) finish_one();
  }
  void start(Bucket& bucket) {
    for (auto const& group : bucket.groups)
      if (group->gradients.is_trained()) group->gradients.start_reduce();
    bucket.reduced = true;
    under_way_.push_back(&bucket);
  }
  void finish() {
    while (!under_way_.empty()) finish_one();
  }
  /// Of a pass that failed.
  void forget() { under_way_.clear(); }

 private:
  static void reduce_over_replicas(Bucket& bucket) {
    for (auto const& group : bucket.groups) group->gradients.reduce_over_replicas();
  }
  void finish_one() {
    auto& bucket = *under_way_.front();
    if (under_way_.size() == 1) reduce_over_replicas(bucket);
    under_way_.pop_front();
    for (auto const& group : bucket.groups) group->gradients.finish_reduce();
  }

  std::deque<Bucket*> under_way_;
};

}  // namespace weft::shard
