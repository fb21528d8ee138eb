// data/stream.hpp -- a rank's samples of a stream.
// In: a stream, where to start, the ranks. Out: every num_ranks-th sample, or those of the stream's own shard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <weft/core/error.hpp>
#include <weft/data/dataset.hpp>
#include <weft/data/loader_options.hpp>
#include <weft/data/order.hpp>

namespace weft::inline v0::data::detail {

// Samples are taken by rounds, one a rank: a rank that has seen a whole round knows that the others have a sample, too.
// The last round may be short; what happens then is the same as with a dataset of known length (Uneven), but that no
// rank has to know the length before.
template <class Dataset>
class StreamReader {
 public:
  using Sample = sample_t<Dataset>;

  StreamReader(Dataset const& pristine, std::uint64_t epoch, std::size_t start, Uneven uneven, std::size_t num_ranks,
               std::size_t rank)
      : pristine_(&pristine), epoch_(epoch), uneven_(uneven), shard_count_(num_ranks), shard_(rank), stream_(opened()) {
    if constexpr (!Shardable<Dataset>) {
      num_ranks_ = num_ranks;
      rank_ = rank;
    }
    std::size_t const there = pass_over(start);
    if (Shardable<Dataset> && there < start)
      ended_ = true;  // another rank's shard, whose state this is, is longer
    else if (there < start)
      fail<CheckpointError>("weft: rank ", rank, ": the saved loader was ", start,
                            " samples into the stream, which ends after ", there, ": the data changed");
  }

  // Empty at the end.
  std::optional<Sample> next() {
    if (ended_) return std::nullopt;
    std::size_t round = pass_over(rank_);
    std::optional<Sample> own;
    if (round == rank_) own = read();
    if (own) round += 1 + pass_over(num_ranks_ - rank_ - 1);
    if (round == num_ranks_) return own;
    ended_ = true;
    if (round == 0 || uneven_ == Uneven::drop) return std::nullopt;
    if (uneven_ == Uneven::pad && !own) return from_the_start((reached_ - round + rank_) % reached_);
    return own;
  }

  // Of the next sample, in the order of all ranks, or in this rank's shard.
  std::size_t place() const { return reached_ + rank_; }
  std::size_t reached() const { return reached_; }

 private:
  Dataset opened() const {
    Dataset stream(*pristine_);
    if constexpr (KnowsEpoch<Dataset>) stream.set_epoch(epoch_);
    if constexpr (Shardable<Dataset>) stream.shard(shard_count_, shard_);
    return stream;
  }

  std::optional<Sample> read() {
    try {
      auto sample = stream_.next();
      if (sample) ++reached_;
      return sample;
    } catch (...) {
      fail_while("weft: rank ", shard_, ", sample ", reached_,
                 Shardable<Dataset> ? " of its shard of the stream" : " of the stream");
    }
  }
  // How many there were.
  std::size_t pass_over(std::size_t count) {
    std::size_t passed = 0;
    if constexpr (Skippable<Dataset>) {
      if (count > 0) passed = stream_.skip(count);
      reached_ += passed;
    } else {
      while (passed < count && read()) ++passed;
    }
    return passed;
  }
  std::optional<Sample> from_the_start(std::size_t place) const {
    StreamReader again(*pristine_, epoch_, 0, uneven_, shard_count_, shard_);
    again.pass_over(place);
    return again.read();
  }

  Dataset const* pristine_;
  std::uint64_t epoch_;
  Uneven uneven_;
  std::size_t shard_count_, shard_;
  std::size_t num_ranks_ = 1, rank_ = 0;  // that share this stream by turns
  std::size_t reached_ = 0;               // by all of them
  bool ended_ = false;
  Dataset stream_;
};

// Absent where the stream does not say.
template <class Dataset>
std::optional<std::size_t> samples_of_rank(Dataset const& stream, Uneven uneven, Place const& place) {
  if constexpr (!Sized<Dataset>) {
    return std::nullopt;
  } else if constexpr (Shardable<Dataset>) {
    Dataset part(stream);
    part.shard(place.num_ranks, place.rank);
    return std::as_const(part).size();
  } else {
    std::optional<std::size_t> const total = stream.size();
    return total ? std::optional(Share(nullptr, *total, 0, place.num_ranks, place.rank, uneven).size()) : std::nullopt;
  }
}

}  // namespace weft::data::detail
