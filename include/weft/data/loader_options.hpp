// data/loader_options.hpp -- how data is loaded, and by whom.
// In: what a user says. Out: options that are known to make sense together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Device.h>

#include <weft/core/error.hpp>
#include <weft/data/move.hpp>
#include <weft/data/order.hpp>
#include <weft/data/position.hpp>

namespace weft::inline v0::data {

struct LoaderOptions {
  std::size_t batch_size = 1;  // per rank: a step of all ranks together takes num_ranks times as many
  bool shuffle = false;
  Order order{};  // of all ranks together, instead: weighted(...), drawn_by(torch_sampler), or a function of one's own
  bool drop_last = false;          // leave out a last batch that is not full
  std::size_t workers = 0;         // threads that fetch ahead; 0 fetches in the loop
  std::size_t prefetch = 2;        // batches that each worker may be ahead
  std::optional<Uneven> uneven{};  // absent: pad; keep where a stream has shards of its own
  bool pin_memory =
      true;  // where batches move to a GPU: through memory that it reads by itself, beside the computation
  std::optional<std::uint64_t> seed{};  // absent: the Fabric's, else 0
};

// This rank among those that share the data, and the device it computes on.
struct Place {
  std::size_t num_ranks = 1;
  std::size_t rank = 0;
  at::Device device = at::kCPU;
  std::shared_ptr<Transport> transport{};  // absent: a SideStream to a GPU, copies in place to anything else
};

namespace detail {

inline std::size_t batches_in(std::size_t samples, LoaderOptions const& options) {
  return options.drop_last ? samples / options.batch_size : (samples + options.batch_size - 1) / options.batch_size;
}

inline void check_options(LoaderOptions const& options, Place const& place) {
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

inline void check_stream(LoaderOptions const& options, bool has_shards, std::size_t num_ranks) {
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

inline void check_state(LoaderState const& state, std::size_t num_samples, std::size_t num_ranks, bool shuffle,
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

inline std::vector<std::size_t> drawn(LoaderOptions const& options, Draw const& draw) {
  if (!options.order) return random_order(draw);
  auto order = options.order(draw);
  for (std::size_t const index : order)
    if (index >= draw.num_samples)
      fail<ConfigurationError>("weft: setup_dataloader: .order gives sample ", index, " of a dataset of ",
                               draw.num_samples, ": indices count from 0");
  if (order.empty()) fail<ConfigurationError>("weft: setup_dataloader: .order gives no samples in epoch ", draw.epoch);
  return order;
}

}  // namespace detail
}  // namespace weft::data
