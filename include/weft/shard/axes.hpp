// shard/axes.hpp -- the ranks that one model is sharded over.
// In: a mechanism's context. Out: the axes of a sharding, for groups, engines and setup.
#pragma once

#include <memory>
#include <utility>

#include <weft/comm/communicator.hpp>
#include <weft/comm/mechanism_context.hpp>
#include <weft/strategy/sharding.hpp>

namespace weft::inline v0::shard {

/// The ranks of a sharded model: cut over `shard`, repeated over `replicate`. Null stands for an axis of one.
struct Axes {
  std::shared_ptr<comm::Communicator> shard;
  std::shared_ptr<comm::Communicator> replicate;

  int num_shards() const { return shard ? shard->size() : 1; }
  int shard_rank() const { return shard ? shard->rank() : 0; }
  bool alone() const { return !shard && !replicate; }
  /// Whether this is the first rank of the first replica.
  bool is_first() const { return shard_rank() == 0 && is_first_replica(); }
  bool is_first_replica() const { return !replicate || replicate->rank() == 0; }
};

/// The axes of a sharding: "shard" and "replicate" of the mesh for a hybrid one; else all that are left, as one, over
/// which parameters are sharded, or repeated if they stay unsharded. A group of one is no group.
inline Axes axes_of(ShardConfig const& sharding, MechanismContext const& context) {
  if (sharding.replicate) return {context.axis("shard"), context.axis("replicate")};
  auto ranks = context.ranks();
  if (!ranks || ranks->size() == 1) return {};
  return sharding.shard_parameters ? Axes{std::move(ranks), nullptr} : Axes{nullptr, std::move(ranks)};
}

}  // namespace weft::shard
