// shard/unsharded.ipp -- definitions of shard/unsharded.hpp.
#pragma once

#include <weft/shard/unsharded.hpp>

#include <utility>
#include <vector>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/core/memory_tag.hpp>

namespace weft::inline v0::shard {

WEFT_INLINE Unsharded::Unsharded(FlatParameters& flat) : flat_(flat) {
  BelowAutograd const below;
  auto const all = flat_.gathers()
                       ? without_memory(flat_.layout.padded(), flat_.shard.options().dtype(flat_.dtypes.computed))
                       : flat_.shard;
  for (std::size_t i = 0; i < flat_.members.size(); ++i) {
    auto& m = flat_.members[i];
    m.whole = flat_.slice(all, i).as_strided(m.shape, m.strides);
  }
  whole_.emplace(all,
                 core::message("weft: ", flat_.what,
                               " is sharded: its parameters are whole only while it runs, or under summon_full_params"),
                 *flat_.pool);
  if (flat_.gathers()) whole_->release();
}

WEFT_INLINE void Unsharded::start_gather(bool masters) {
  if (!flat_.gathers()) return;
  BelowAutograd const below;
  masters_shown_ = masters && flat_.casts;
  if (masters_shown_) {
    if (!flat_.is_cut()) return;
    provide_masters();
    gather_ = flat_.axes.shard->all_gather_into_async(masters_, flat_.shard, flat_.what);
    return;
  }
  whole_->allocate();
  auto sent = flat_.shard;
  if (flat_.casts) {
    sent = flat_.own_chunk(whole_->tensor());
    sent.copy_(flat_.shard);
  }
  if (flat_.is_cut()) gather_ = flat_.axes.shard->all_gather_into_async(whole_->tensor(), sent, flat_.what);
}

WEFT_INLINE void Unsharded::finish_gather() {
  if (!flat_.gathers()) return;
  BelowAutograd const below;
  gather_.wait();
  gathered_ = stamp();
}

WEFT_INLINE void Unsharded::gather_on_first() {
  bool const is_first = flat_.axes.shard_rank() == 0;
  if (!flat_.is_cut()) return is_first ? start_gather(/*masters=*/true) : void();
  BelowAutograd const below;
  std::vector<at::Tensor> chunks;
  if (is_first) {
    masters_shown_ = flat_.casts;
    flat_.casts ? provide_masters() : whole_->allocate();
    auto const& all = flat_.casts ? masters_ : whole_->tensor();
    auto const chunk = flat_.layout.chunk();
    for (int rank = 0; rank < flat_.axes.num_shards(); ++rank) chunks.push_back(all.narrow(0, rank * chunk, chunk));
  }
  flat_.axes.shard->gather_into(chunks, flat_.shard);
  gathered_ = stamp();
}

WEFT_INLINE void Unsharded::release() {
  if (!flat_.gathers()) return;
  if (!masters_shown_) return whole_->release();
  masters_shown_ = false;
  recycle(std::exchange(masters_, at::Tensor()), MemoryTag::gathered, *flat_.pool);
}

WEFT_INLINE bool Unsharded::show() {
  if (!flat_.gathers()) return true;
  BelowAutograd const below;
  if (masters_shown_) {
    if (flat_.is_cut()) show_masters(masters_);  // those that are not cut are masters at rest
    return false;
  }
  for (auto& m : flat_.members) {
    m.parameter.set_data(m.whole);
    if (m.accumulator) comm::set_accumulator(m.parameter, m.accumulator);
  }
  return true;
}

WEFT_INLINE void Unsharded::show_shards() {
  if (!flat_.gathers()) return;
  BelowAutograd const below;
  for (auto& m : flat_.members) {
    m.parameter.set_data(m.part);
    if (m.accumulator) comm::set_accumulator(m.parameter, m.outside);
  }
}

WEFT_INLINE void Unsharded::show_shapes() {
  if (!flat_.is_cut()) return;
  BelowAutograd const below;
  show_masters(without_memory(flat_.layout.padded(), flat_.shard.options()));
}

WEFT_INLINE void Unsharded::keep() {
  if (!flat_.is_cut()) return;
  BelowAutograd const below;
  flat_.shard.copy_(flat_.own_chunk(flat_.casts ? masters_ : whole_->tensor()));
}

WEFT_INLINE void Unsharded::provide_masters() {
  masters_ = empty(flat_.layout.padded(), flat_.shard.options(), MemoryTag::gathered, flat_.pool);
}

WEFT_INLINE void Unsharded::show_masters(at::Tensor const& all) {
  for (std::size_t i = 0; i < flat_.members.size(); ++i) {
    auto& m = flat_.members[i];
    m.parameter.set_data(flat_.slice(all, i).as_strided(m.shape, m.strides));
    if (m.accumulator) comm::set_accumulator(m.parameter, m.outside);
  }
}

WEFT_INLINE int64_t Unsharded::stamp() const {
  int64_t sum = 0;
  for (auto const& m : flat_.members)
    sum += m.parameter.is_inference() ? 0 : static_cast<int64_t>(m.parameter._version());
  return sum;
}

}  // namespace weft::shard
