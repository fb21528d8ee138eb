// shard/forward_order.hpp -- the order in which a model's buckets run.
// In: buckets as forward enters and leaves them. Out: what was recorded, and which come next; no torch.
//
// [Note: the recorded order] The first forward records the order in which buckets run; from then on the next ones are
// gathered ahead. A forward that runs in another order gathers when it must, and its order is the next one's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace weft::inline v0::shard {

class ForwardOrder {
 public:
  using Buckets = std::vector<std::size_t>;

  /// A forward begins, and follows what is recorded.
  void begin() {
    entered_.clear();
    left_.clear();
    follows_ = !recorded_.empty();
  }
  /// A bucket is entered. The first that is not where it was recorded is told by its place in the recorded order.
  std::optional<std::size_t> enter(std::size_t bucket) {
    if (!entered_.empty() && entered_.back() == bucket) return std::nullopt;
    // A method that runs the units again and again, such as one that generates a text, begins anew behind the root.
    if (follows_ && entered_.size() == recorded_.size() && recorded_.size() > 1) entered_.resize(1);
    entered_.push_back(bucket);
    if (!follows_) return std::nullopt;
    auto const at = entered_.size() - 1;
    if (at < recorded_.size() && recorded_[at] == bucket) return std::nullopt;
    follows_ = false;
    return at;
  }
  void leave(std::size_t bucket) {
    if (left_.empty() || left_.back() != bucket) left_.push_back(bucket);
  }
  /// The forward is through: where it did not follow, it is what is recorded.
  void end() {
    if (follows_) return;
    recorded_ = entered_;
    recorded_left_ = left_;
  }

  /// Of this forward, up to here.
  Buckets const& entered() const { return entered_; }
  Buckets const& recorded() const { return recorded_; }

  /// Calls with the buckets that come next in this forward, `count` at most.
  template <class Visit>
  void ahead_in_forward(std::size_t count, Visit const& visit) const {
    if (!follows_) return;
    for (auto at = entered_.size(); at < recorded_.size() && at < entered_.size() + count; ++at) visit(recorded_[at]);
  }
  /// The same in backward, which enters first what forward left last.
  template <class Visit>
  void ahead_in_backward(std::size_t bucket, std::size_t count, Visit const& visit) const {
    auto const here = std::find(recorded_left_.rbegin(), recorded_left_.rend(), bucket);
    if (here == recorded_left_.rend()) return;
    for (auto next = here + 1; next != recorded_left_.rend() && count > 0; ++next, --count) visit(*next);
  }

 private:
  Buckets recorded_, entered_;
  Buckets recorded_left_, left_;  // in which they were left: an outer unit after those inside of it
  bool follows_ = false;
};

}  // namespace weft::shard
