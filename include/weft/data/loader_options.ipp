// data/loader_options.ipp -- definitions of data/loader_options.hpp.
#pragma once

#include <weft/data/loader_options.hpp>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::data::detail {

WEFT_INLINE void check_options(LoaderOptions const& options, Place const& place) {
  if (options.batch_size == 0)
    fail<ConfigurationError>(
        "weft: setup_dataloader: .batch_size = 0: give the number of samples per batch and rank, at least 1");
  if (options.prefetch == 0)
    fail<ConfigurationError>(
        "weft: setup_dataloader: .prefetch = 0: give the number of batches that each worker may be ahead, at least 1");
  if (options.shuffle && options.order)
    fail<ConfigurationError>(
        "weft: setup_dataloader: .shuffle and .order both say which sample comes next: give one of them");
  if (place.num_ranks == 0 || place.rank >= place.num_ranks)
    fail<ConfigurationError>("weft: setup_dataloader: rank ", place.rank, " of ", place.num_ranks,
                             ": ranks count from 0, and there is at least one");
}

WEFT_INLINE void check_stream(LoaderOptions const& options, bool has_shards, std::size_t num_ranks) {
  if (options.shuffle || options.order)
    fail<ConfigurationError>(
        "weft: setup_dataloader: a stream comes in its own order, so .shuffle and .order cannot be had: shuffle inside "
        "of it, by the epoch that its set_epoch(epoch) is told");
  if (has_shards && num_ranks > 1 && options.uneven.value_or(Uneven::keep) != Uneven::keep)
    fail<ConfigurationError>(
        "weft: setup_dataloader: a stream with shards of its own ends on each rank where its shard does, so .uneven "
        "cannot be ",
        options.uneven == Uneven::pad ? "pad" : "drop",
        ": make shards equally long, or leave shard() out and each rank takes every ", num_ranks, "-th sample");
}

WEFT_INLINE void check_state(LoaderState const& state, std::size_t num_samples, std::size_t num_ranks, bool shuffle,
                             bool has_shards) {
  if (state.samples == 0) return;
  if (state.num_samples != num_samples)
    fail<CheckpointError>(
        "weft: load_state: the saved loader had ", state.num_samples, " samples, this one has ", num_samples,
        ": the data set changed, and the middle of an epoch with it; start at an epoch: set_epoch(", state.epoch, ")");
  if (state.shuffled != shuffle)
    fail<CheckpointError>("weft: load_state: the saved loader was ", state.shuffled ? "shuffled" : "in order",
                          " and in the middle of an epoch, this one is ", shuffle ? "shuffled" : "in order",
                          ": give both the same .shuffle and .order");
  if (has_shards && state.num_ranks != num_ranks)
    fail<CheckpointError>("weft: load_state: the stream has shards of its own and was read by ", state.num_ranks,
                          " ranks up to the middle of an epoch, these are ", num_ranks,
                          ": go on with as many, or start at an epoch: set_epoch(", state.epoch, ")");
}

WEFT_INLINE std::vector<std::size_t> drawn(LoaderOptions const& options, Draw const& draw) {
  if (!options.order) return random_order(draw);
  auto order = options.order(draw);
  for (std::size_t const index : order)
    if (index >= draw.num_samples)
      fail<ConfigurationError>("weft: setup_dataloader: .order gives sample ", index, " of a dataset of ",
                               draw.num_samples, ": indices count from 0");
  if (order.empty()) fail<ConfigurationError>("weft: setup_dataloader: .order gives no samples in epoch ", draw.epoch);
  return order;
}

}  // namespace weft::data::detail
