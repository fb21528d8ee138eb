// data/loader.hpp -- one pass over the data is one range-for.
// In: a torch::data dataset and this rank's place. Out: batches on the device; each loop is the next epoch.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/data/dataloader/stateless.h>
#include <torch/data/dataloader_options.h>
#include <torch/data/datasets/map.h>
#include <torch/data/example.h>
#include <torch/data/iterator.h>
#include <torch/data/transforms/stack.h>

#include <weft/core/error.hpp>
#include <weft/data/move.hpp>
#include <weft/data/sampler.hpp>

namespace weft::data {

struct LoaderOptions {
  std::size_t batch_size = 1;  // per rank
  bool shuffle = false;
  bool drop_last = false;   // leave out a last batch that is not full
  std::size_t workers = 0;  // threads that fetch ahead; 0 fetches in the loop
  Uneven uneven = Uneven::pad;
  std::optional<std::uint64_t> seed{};  // absent: the Fabric's, else 0
};

// This rank among those that share the data, and the device it computes on.
struct Place {
  std::size_t num_ranks = 1;
  std::size_t rank = 0;
  at::Device device = at::kCPU;
};

template <class Type>
concept TorchDataset = requires(Type& dataset, std::vector<std::size_t>& indices) {
  typename Type::BatchType;
  dataset.get_batch(indices);
  { std::as_const(dataset).size() } -> std::convertible_to<std::optional<std::size_t>>;
  requires !Type::is_stateful;
};

// The facade asks this of whatever was passed as a dataset. False after the sentence, so that the caller can stop follow-up errors.
template <class Type>
constexpr bool assert_dataset() {
  static_assert(TorchDataset<Type>,
                "weft: setup_dataloader: pass a torch::data dataset by value: a class derived from torch::data::datasets::Dataset or "
                "BatchDataset with get_batch(indices) and size(), not a stateful one, which cannot be cut over ranks");
  return TorchDataset<Type>;
}

template <class Batch>
inline constexpr bool is_stackable_v = false;
template <>
inline constexpr bool is_stackable_v<std::vector<torch::data::Example<>>> = true;
template <>
inline constexpr bool is_stackable_v<std::vector<torch::data::TensorExample>> = true;

// A dataset that yields a list of examples is stacked into one example of batches; others are taken as they are.
template <TorchDataset Dataset>
auto collate(Dataset dataset) {
  using Batch = typename Dataset::BatchType;
  if constexpr (is_stackable_v<Batch>)
    return torch::data::datasets::map(std::move(dataset), torch::data::transforms::Stack<typename Batch::value_type>());
  else
    return dataset;
}

template <TorchDataset Dataset>
class Loader {
  using Collated = decltype(collate(std::declval<Dataset>()));

  struct Source : torch::data::StatelessDataLoader<Collated, DistributedSampler> {
    using torch::data::StatelessDataLoader<Collated, DistributedSampler>::StatelessDataLoader;
    // torch refuses to begin while workers still fetch for a pass that was left by break or an exception.
    void abandon_pass() { this->shuttle_.drain(); }
  };

 public:
  using Batch = typename Collated::BatchType;

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Batch& operator*() { return *batch_; }
    Batch* operator->() { return &*batch_; }
    Iterator& operator++() {
      fetch(++source_);
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !batch_; }

   private:
    friend Loader;
    Iterator(torch::data::Iterator<Batch> begin, torch::data::Iterator<Batch> end, at::Device device)
        : source_(std::move(begin)), end_(std::move(end)), device_(device) {
      fetch(source_);
    }
    void fetch(torch::data::Iterator<Batch>& source) {
      batch_.reset();
      if (source != end_) batch_.emplace(move_to(std::move(*source), device_));
    }

    torch::data::Iterator<Batch> source_;
    torch::data::Iterator<Batch> end_;
    at::Device device_;
    std::optional<Batch> batch_;
  };

  Loader(Dataset dataset, LoaderOptions options, Place place = {})
      : options_(options), place_(place), sampler_(sampler_for(dataset, options, place)) {
    if (size() == 0 && options.uneven != Uneven::keep)
      fail<ConfigurationError>("weft: setup_dataloader: ", *dataset.size(), " samples on ", place.num_ranks, " ranks make no batch of ", options.batch_size,
                               ": use more data, fewer ranks or smaller batches, or let the last batch be short (.uneven = Uneven::pad, .drop_last = false)");
    source_ = std::make_unique<Source>(
        collate(std::move(dataset)), sampler_,
        torch::data::DataLoaderOptions(options.batch_size).workers(options.workers).drop_last(options.drop_last));
  }

  // Begins the next epoch: 0 in the first loop, then one more in each.
  Iterator begin() {
    epoch_ = next_epoch_++;
    sampler_.set_epoch(epoch_);
    source_->abandon_pass();
    return Iterator(source_->begin(), source_->end(), place_.device);
  }
  std::default_sentinel_t end() const { return {}; }

  // Batches per epoch on this rank.
  std::size_t size() const {
    std::size_t const samples = sampler_.size();
    return options_.drop_last ? samples / options_.batch_size : (samples + options_.batch_size - 1) / options_.batch_size;
  }

  // The epoch of the loop that runs or ran last; before the first, the one that it will be.
  std::uint64_t epoch() const { return epoch_; }
  // The next loop is this epoch. To go on after epoch n was completed: set_epoch(n + 1).
  void set_epoch(std::uint64_t epoch) { epoch_ = next_epoch_ = epoch; }

  LoaderOptions const& options() const { return options_; }
  DistributedSampler const& sampler() const { return sampler_; }

 private:
  static DistributedSampler sampler_for(Dataset const& dataset, LoaderOptions const& options, Place const& place) {
    if (options.batch_size == 0) fail<ConfigurationError>("weft: setup_dataloader: .batch_size = 0: give the number of samples per batch and rank, at least 1");
    std::optional<std::size_t> const num_samples = dataset.size();
    if (!num_samples) fail<ConfigurationError>("weft: setup_dataloader: the dataset's size() is unknown, so it cannot be cut over ranks: return the number of samples");
    if (*num_samples == 0) fail<ConfigurationError>("weft: setup_dataloader: the dataset is empty");
    return DistributedSampler(*num_samples, {.num_ranks = place.num_ranks, .rank = place.rank, .shuffle = options.shuffle,
                                             .seed = options.seed.value_or(0), .uneven = options.uneven});
  }

  LoaderOptions options_;
  Place place_;
  DistributedSampler sampler_;  // shares its epoch with the copy inside source_
  std::unique_ptr<Source> source_;
  std::uint64_t epoch_ = 0;
  std::uint64_t next_epoch_ = 0;
};

}  // namespace weft::data
