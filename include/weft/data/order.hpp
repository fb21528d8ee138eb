// data/order.hpp -- which samples of an epoch this rank sees.
// In: how many samples there are, the ranks, a seed and an epoch. Out: this rank's indices, in PyTorch's order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>

namespace weft::inline v0::data {

// What happens to samples that do not divide by the number of ranks. 10 samples, 4 ranks, in order:
//
//   pad    0 4 8 | 1 5 9 | 2 6 0 | 3 7 1     repeats from the start: all ranks are equally long
//   drop   0 4   | 1 5   | 2 6   | 3 7       leaves the last ones out: all ranks are equally long
//   keep   0 4 8 | 1 5 9 | 2 6   | 3 7       each sample once: for evaluation; ranks differ in length
enum class Uneven { pad, drop, keep };

// What the order of an epoch is drawn from: alike on all ranks, so that they draw alike.
struct Draw {
  std::size_t num_samples = 0;
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;

  at::Generator generator() const { return at::detail::createCPUGenerator(seed + epoch); }
};

// The order of one epoch for all ranks together: any number of indices below num_samples, of which each rank takes
// every num_ranks-th. It must depend on the Draw alone: ranks whose orders differ would see samples twice or not at
// all.
using Order = std::function<std::vector<std::size_t>(Draw const&)>;

inline std::vector<std::size_t> indices_in(at::Tensor const& tensor) {
  std::int64_t const* values = tensor.const_data_ptr<std::int64_t>();
  return {values, values + tensor.numel()};
}

// Every sample once: torch.randperm of a generator seeded seed + epoch.
std::vector<std::size_t> random_order(Draw const& draw);

std::vector<std::size_t> sample_order(std::size_t num_samples, bool shuffle, std::uint64_t seed, std::uint64_t epoch);

// num_draws samples (0: as many as there are weights), each in proportion to its weight:
// torch.utils.data.WeightedRandomSampler.
Order weighted(std::vector<double> weights, std::size_t num_draws = 0, bool replacement = true);

// The order of a torch::data sampler, or of any type with reset() and next(batch_size). Samplers draw from LibTorch's
// default generator, which differs from rank to rank as soon as one has drawn more: here they draw from one that is
// seeded by the epoch, and it goes on as before.
template <class Sampler>
Order drawn_by(Sampler sampler) {
  return [sampler = std::make_shared<Sampler>(std::move(sampler))](Draw const& draw) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    struct Restored {
      explicit Restored(at::Generator& it, std::uint64_t seed) : generator(it), state(of(it)) {
        std::scoped_lock const lock(generator.mutex());
        generator.set_current_seed(seed);
      }
      ~Restored() {
        std::scoped_lock const lock(generator.mutex());
        generator.set_state(state);
      }
      static at::Tensor of(at::Generator& generator) {
        std::scoped_lock const lock(generator.mutex());
        return generator.get_state();
      }
      at::Generator& generator;
      at::Tensor state;
    } const restored(generator, draw.seed + draw.epoch);
    std::vector<std::size_t> order;
    sampler->reset();
    while (auto some = sampler->next(1024)) order.insert(order.end(), some->begin(), some->end());
    return order;
  };
}

// What is left of an epoch's order after `start`, dealt to the ranks in turn.
class Share {
 public:
  Share() = default;
  // order: null for 0, 1, 2, ...
  Share(std::shared_ptr<std::vector<std::size_t> const> order, std::size_t total, std::size_t start,
        std::size_t num_ranks, std::size_t rank, Uneven uneven);

  // Samples on this rank.
  std::size_t size() const;
  // The i-th one's index. Past the end the order starts over, as often as needed: fewer samples than ranks is an
  // ordinary case of pad.
  std::size_t operator[](std::size_t i) const {
    std::size_t at = place(i);
    if (at >= total_) at %= total_;
    return order_ ? (*order_)[at] : at;
  }
  // Where it stands in the order of all ranks.
  std::size_t place(std::size_t i) const { return start_ + rank_ + i * num_ranks_; }
  // How many of this rank's samples are there twice, at the end.
  std::size_t repeats() const {
    std::size_t count = 0;
    while (count < size() && place(size() - 1 - count) >= total_) ++count;
    return count;
  }
  // How far all ranks are when this one has been given `count` samples.
  std::size_t reached(std::size_t count) const { return std::min(total_, start_ + count * num_ranks_); }

 private:
  std::shared_ptr<std::vector<std::size_t> const> order_;
  std::size_t total_ = 0;
  std::size_t start_ = 0;
  std::size_t num_ranks_ = 1;
  std::size_t rank_ = 0;
  Uneven uneven_ = Uneven::pad;
};

}  // namespace weft::data

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data/order.ipp>
#endif
