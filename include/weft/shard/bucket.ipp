// shard/bucket.ipp -- definitions of shard/bucket.hpp.
#pragma once

#include <weft/shard/bucket.hpp>

#include <weft/core/build.hpp>

namespace weft::inline v0::shard {

WEFT_INLINE void Bucket::start_gather(bool masters) {
  for (auto const& group : groups) group->unsharded.start_gather(masters);
  state = State::gathering;
}

WEFT_INLINE void Bucket::claim(bool masters) {
  if (state == State::kept && gathers() && !is_fresh()) release();
  if (state == State::sharded) start_gather(masters);
}

WEFT_INLINE void Bucket::unshard(bool masters) {
  if (state == State::whole) return;
  claim(masters);
  if (state == State::gathering)
    for (auto const& group : groups) group->unsharded.finish_gather();
  for (auto const& group : groups) group->show_unsharded();
  state = State::whole;
}

WEFT_INLINE void Bucket::unshard_on_first(Axes const& axes) {
  if (!axes.is_first_replica() || !gathers()) return;
  for (auto const& group : groups) group->unsharded.gather_on_first();
  if (!axes.is_first()) return;
  for (auto const& group : groups) group->show_unsharded();
  state = State::whole;
}

WEFT_INLINE void Bucket::show_shards() {
  for (auto const& group : groups) group->unsharded.show_shards();
  state = State::kept;
}

WEFT_INLINE void Bucket::release() {
  for (auto const& group : groups) group->unsharded.release();
  state = State::sharded;
}

WEFT_INLINE void Bucket::reshard() {
  if (state == State::sharded || !gathers()) return;
  if (state == State::gathering)
    for (auto const& group : groups) group->unsharded.finish_gather();
  if (state == State::whole) show_shards();
  release();
}

}  // namespace weft::shard
