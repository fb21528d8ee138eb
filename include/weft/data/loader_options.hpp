// data/loader_options.hpp -- how data is loaded, and by whom.
// In: what a user says. Out: options that are known to make sense together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Device.h>

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

void check_options(LoaderOptions const& options, Place const& place);

void check_stream(LoaderOptions const& options, bool has_shards, std::size_t num_ranks);

void check_state(LoaderState const& state, std::size_t num_samples, std::size_t num_ranks, bool shuffle,
                 bool has_shards);

std::vector<std::size_t> drawn(LoaderOptions const& options, Draw const& draw);

}  // namespace detail
}  // namespace weft::data

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data/loader_options.ipp>
#endif
