// shard/bucket.hpp -- units whose parameters are unsharded together.
// In: the groups of their parameters. Out: which of its states a bucket is in, and what leads from one to the next.
//
//   sharded --start_gather--> gathering --unshard--> whole --show_shards--> kept --release--> sharded
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <weft/shard/group.hpp>

namespace weft::inline v0::shard {

struct Bucket {
  enum class State {
    sharded,    // parameters are shards, nothing else has memory
    gathering,  // the whole is on its way
    kept,       // the whole has memory, parameters are shards: between forward and backward
    whole,      // parameters are whole
  };

  std::string what;        // "layers.0 (TransformerBlock), layers.1 (TransformerBlock)"
  int parent = -1;         // the bucket of the unit around; -1: this is the root
  bool is_around = false;  // of others
  std::vector<std::unique_ptr<Group>> groups{};

  State state = State::whole;
  State found = State::whole;  // by a forward that runs again
  int running = 0;             // forwards of its units under way
  int calls = 0;               // forwards whose backward may still come: their graphs are there, and were not used up
  int crossings = 0;           // forwards whose outputs are in the graph of this backward pass
  int passed = 0;              // of these, how many it has entered
  bool entered = false;        // in this backward pass
  bool reduced = false;        // in this backward pass
  std::size_t expected = 0, arrived = 0;  // gradients in this backward pass

  bool gathers() const {
    return any([](Group const& group) { return group.gathers(); });
  }
  bool holds_gradients() const {
    return any([](Group const& group) { return group.gradients.holds(); });
  }

  /// `masters`, here and below: what the optimizer steps is to be seen, not what computes.
  void start_gather(bool masters);
  /// Sees to it that the whole is there or on its way.
  void claim(bool masters);
  void unshard(bool masters);
  /// For somebody who reads masters on the first rank of `axes`. The other ranks stay as they are.
  void unshard_on_first(Axes const& axes);
  void show_shards();
  void release();
  void reshard();

 private:
  template <class Predicate>
  bool any(Predicate const& predicate) const {
    return std::any_of(groups.begin(), groups.end(), [&](auto const& group) { return predicate(*group); });
  }
  bool is_fresh() const {
    return !any([](Group const& group) { return !group.unsharded.is_fresh(); });
  }
};

}  // namespace weft::shard

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/shard/bucket.ipp>
#endif
