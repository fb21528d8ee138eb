// shard/flat_parameters.ipp -- definitions of shard/flat_parameters.hpp.
#pragma once

#include <weft/shard/flat_parameters.hpp>

#include <algorithm>
#include <utility>

#include <c10/util/accumulate.h>

#include <weft/core/build.hpp>
#include <weft/core/memory_tag.hpp>

namespace weft::inline v0::shard {

inline std::vector<int64_t> numels(std::vector<Member> const& members) {
  std::vector<int64_t> result;
  for (auto const& m : members) result.push_back(c10::multiply_integers(m.shape));
  return result;
}

WEFT_INLINE FlatParameters::FlatParameters(std::vector<Member> list, Axes ranks, at::ScalarType kept, Dtypes numbers,
                                           std::string units, BufferPool& buffers)
    : axes(std::move(ranks)),
      dtypes(numbers),
      casts(numbers.computed != kept),
      members(std::move(list)),
      layout(numels(members), axes.num_shards()),
      what(std::move(units)),
      pool(&buffers) {
  BelowAutograd const below;
  auto const options = members.front().parameter.options().dtype(kept).requires_grad(false);
  int const rank = axes.shard_rank();
  shard = empty(is_cut() ? layout.chunk() : layout.padded(), options, MemoryTag::parameters);
  auto const filled = std::clamp<int64_t>(layout.total() - rank * layout.chunk(), 0, layout.chunk());
  if (filled < layout.chunk()) shard.narrow(0, filled, layout.chunk() - filled).zero_();
  if (is_cut() && !casts)
    registered = axes.shard->register_buffer(shard);  // what each gather sends; the other buffers come and go
}

WEFT_INLINE at::Tensor FlatParameters::part_of(at::Tensor const& chunk, std::size_t i) const {
  if (!is_cut()) return slice(chunk, i).as_strided(members[i].shape, members[i].strides);
  return chunk.narrow(0, layout.place(i, axes.shard_rank()), members[i].range.size());
}

}  // namespace weft::shard
