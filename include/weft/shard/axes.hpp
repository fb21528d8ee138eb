// shard/axes.hpp -- the ranks that one model is sharded over.
// In: communicators. Out: the axes of a strategy, for groups, engines and setup.
#pragma once

#include <memory>

#include <weft/comm/communicator.hpp>

namespace weft::inline v0::shard {

/// The ranks of a sharded model: cut over `shard`, repeated over `replicate`. Null stands for an axis of one.
struct Axes {
  std::shared_ptr<comm::Communicator> shard;
  std::shared_ptr<comm::Communicator> replicate;

  int num_shards() const { return shard ? shard->size() : 1; }
  int shard_rank() const { return shard ? shard->rank() : 0; }
  bool alone() const { return !shard && !replicate; }
};

}  // namespace weft::shard
