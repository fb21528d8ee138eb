// data/loader.hpp -- one pass over the data is one range-for.
// In: a dataset and this rank's place. Out: batches on the device; each loop is the next epoch, or goes on in the
// middle of a saved one.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include <weft/core/error.hpp>
#include <weft/data/collate.hpp>
#include <weft/data/dataset.hpp>
#include <weft/data/loader_options.hpp>
#include <weft/data/order.hpp>
#include <weft/data/pass.hpp>
#include <weft/data/position.hpp>

namespace weft::inline v0::data {

template <AnyDataset Dataset, class Collate = Stacked>
class Loader {
  using Pass = detail::Pass<Dataset, Collate>;
  using Source = detail::Source<Dataset, Collate>;
  static constexpr bool streams = StreamDataset<Dataset>;

 public:
  using Batch = detail::batch_t<Dataset, Collate>;

  // One loop. Its threads live as long as it does.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Batch& operator*() { return *pass_->batch(); }
    Batch* operator->() { return &*pass_->batch(); }
    Iterator& operator++() {
      pass_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !pass_->batch(); }

   private:
    friend Loader;
    explicit Iterator(std::unique_ptr<Pass> pass) : pass_(std::move(pass)) { pass_->advance(); }
    std::unique_ptr<Pass> pass_;
  };

  Loader(Dataset dataset, LoaderOptions options, Collate collate, Place place = {})
    requires(!std::same_as<Collate, Place>)
      : source_(
            std::make_shared<Source>(std::move(dataset), std::move(options), std::move(collate), std::move(place))) {
    check();
  }
  Loader(Dataset dataset, LoaderOptions options, Place place = {})
      : Loader(std::move(dataset), std::move(options), Collate(), std::move(place)) {}

  Loader(Loader&&) = default;
  Loader& operator=(Loader&&) = default;

  // Begins the next epoch: 0 in the first loop, then one more in each.
  Iterator begin() {
    auto const start = source_->position.start();
    auto share = [&] {
      if constexpr (streams)
        return Share();
      else
        return share_of(source_->position.next_epoch(), start);
    }();
    source_->position.begin();
    return Iterator(std::make_unique<Pass>(source_, std::move(share), start));
  }
  std::default_sentinel_t end() const { return {}; }

  // Batches of a whole epoch on this rank.
  std::size_t size() const
    requires(!streams)
  {
    return batches_in(share_of(source_->position.next_epoch(), 0).size());
  }
  // The same, absent where a stream does not say.
  std::optional<std::size_t> length() const {
    if constexpr (!streams) {
      return size();
    } else {
      auto const samples = detail::samples_of_rank(source_->dataset, source_->uneven(), source_->place);
      return samples ? std::optional(batches_in(*samples)) : std::nullopt;
    }
  }
  // Batches of the next loop's epoch that lie before its start: none, unless load_state set a place within the epoch.
  std::size_t batches_done() const {
    auto const start = source_->position.start();
    if constexpr (!streams)
      return start == 0 ? 0 : size() - batches_in(share_of(source_->position.next_epoch(), start).size());
    else
      return start / (source_->options.batch_size * (detail::Shardable<Dataset> ? 1 : source_->place.num_ranks));
  }
  // How many samples at the end of this rank's epoch are there a second time, so that ranks are equally long: leave
  // them out of a metric that counts each sample once, or write .uneven = Uneven::keep.
  std::size_t repeats() const
    requires(!streams)
  {
    auto const share = share_of(source_->position.next_epoch(), source_->position.start());
    return source_->options.drop_last && share.size() % source_->options.batch_size != 0 ? 0 : share.repeats();
  }

  // The epoch of the loop that runs or ran last; before the first, the one that it will be.
  std::uint64_t epoch() const { return source_->position.epoch(); }
  // The next loop is this epoch. To go on after epoch n was completed: set_epoch(n + 1). Keeps the place of load_state
  // in its epoch.
  void set_epoch(std::uint64_t epoch) { source_->position.set_epoch(epoch); }

  // Where the loader is: inside of a loop, after the batch that it has handed out. Equal on ranks that have made
  // equally many steps.
  LoaderState state() const {
    auto state = source_->position.state();
    state.num_samples = num_samples();
    state.seed = source_->seed();
    state.num_ranks = source_->place.num_ranks;
    state.shuffled = reorders();
    return state;
  }
  // The next loop goes on there, with the seed of the state. A state that was saved at the last batch of an epoch gives
  // a loop without batches.
  void load_state(LoaderState const& state) {
    detail::check_state(state, num_samples(), source_->place.num_ranks, reorders(), detail::Shardable<Dataset>);
    source_->options.seed = state.seed;
    source_->forget_order();
    source_->position.go_to(state.epoch, state.samples);
  }

  LoaderOptions const& options() const { return source_->options; }
  Place const& place() const { return source_->place; }

  // The same data for a rank among others: what setup_dataloader makes of a loader.
  Loader placed(Place place, std::uint64_t seed) && {
    auto options = source_->options;
    if (!options.seed) options.seed = seed;
    auto const position = source_->position;
    Loader placed(std::move(source_->dataset), std::move(options), std::move(source_->collate), std::move(place));
    placed.source_->position = position;
    return placed;
  }

 private:
  Share share_of(std::uint64_t epoch, std::size_t start) const {
    auto const& place = source_->place;
    std::size_t const in_dataset = num_samples();
    auto order = source_->order_of(epoch, in_dataset);
    std::size_t const total = order ? order->size() : in_dataset;
    return Share(std::move(order), total, start, place.num_ranks, place.rank, source_->uneven());
  }
  bool reorders() const { return source_->options.shuffle || source_->options.order; }
  std::size_t batches_in(std::size_t samples) const { return detail::batches_in(samples, source_->options); }

  // 0 where nobody knows.
  std::size_t num_samples() const {
    if constexpr (detail::Sized<Dataset>) return std::optional<std::size_t>(source_->dataset.size()).value_or(0);
    return 0;
  }

  void check() const {
    auto const& options = source_->options;
    detail::check_options(options, source_->place);
    if constexpr (streams) {
      detail::check_stream(options, detail::Shardable<Dataset>, source_->place.num_ranks);
    } else {
      std::optional<std::size_t> const in_dataset = source_->dataset.size();
      if (!in_dataset)
        fail<ConfigurationError>(
            "weft: setup_dataloader: the dataset's size() is unknown, so it cannot be cut over ranks: return the "
            "number of samples, or write a stream: std::optional<Sample> next()");
      if (*in_dataset == 0) fail<ConfigurationError>("weft: setup_dataloader: the dataset is empty");
      if (!options.order && size() == 0 && source_->uneven() != Uneven::keep)
        fail<ConfigurationError>("weft: setup_dataloader: ", *in_dataset, " samples on ", source_->place.num_ranks,
                                 " ranks make no batch of ", options.batch_size,
                                 ": use more data, fewer ranks or smaller batches, or let the last batch be short "
                                 "(.uneven = Uneven::pad, .drop_last = false)");
    }
  }

  std::shared_ptr<Source> source_;
};

template <class T>
inline constexpr bool is_loader_v = false;
template <class Dataset, class Collate>
inline constexpr bool is_loader_v<Loader<Dataset, Collate>> = true;

}  // namespace weft::data
