// data/pass.hpp -- one loop over the data.
// In: a dataset, options, where to start. Out: batches one after another, read by workers or here, moved to the device
// ahead of their use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <weft/core/error.hpp>
#include <weft/core/seeds.hpp>
#include <weft/core/visit.hpp>
#include <weft/data/ahead.hpp>
#include <weft/data/collate.hpp>
#include <weft/data/dataset.hpp>
#include <weft/data/loader_options.hpp>
#include <weft/data/move.hpp>
#include <weft/data/order.hpp>
#include <weft/data/position.hpp>
#include <weft/data/stream.hpp>
#include <weft/data/worker.hpp>

namespace weft::inline v0::data {

// What a loader does to samples unless it is given a collate of one's own.
struct Stacked {
  template <class Sample>
  auto operator()(std::vector<Sample> samples) const {
    return collate(std::move(samples));
  }
};

namespace detail {

template <class T>
inline constexpr bool is_list_of_samples_v = false;
template <class T>
inline constexpr bool is_list_of_samples_v<std::vector<T>> = is_collatable_v<T>;

// What get_batch made: as it is, unless it is a list of samples that can be stacked, or the loader has a collate of its
// own.
template <class Collate, class Made>
auto finished(Collate const& collate, Made made) {
  if constexpr (std::is_same_v<Collate, Stacked> && !is_list_of_samples_v<Made>)
    return made;
  else
    return collate(std::move(made));
}

template <class Dataset, class Collate>
auto batch_of() {
  if constexpr (std::is_void_v<sample_t<Dataset>>) {
    using Reader = std::conditional_t<read_shared_v<Dataset>, Dataset const, Dataset>;
    return std::type_identity<decltype(finished(
        std::declval<Collate const&>(),
        std::declval<Reader&>().get_batch(std::declval<std::vector<std::size_t>&>())))>{};
  } else {
    return std::type_identity<decltype(std::declval<Collate const&>()(
        std::declval<std::vector<sample_t<Dataset>>>()))>{};
  }
}
template <class Dataset, class Collate>
using batch_t = std::remove_cvref_t<typename decltype(batch_of<Dataset, Collate>())::type>;

// What a loader and its loops share.
template <class Dataset, class Collate>
struct Source {
  Source(Dataset it, LoaderOptions opts, Collate how, Place where)
      : dataset(std::move(it)), options(std::move(opts)), collate(std::move(how)), place(std::move(where)) {
    if (!place.transport && place.device.is_cuda() && options.pin_memory)
      place.transport = std::make_shared<SideStream>(place.device);
  }

  std::uint64_t seed() const { return options.seed.value_or(0); }
  Uneven uneven() const { return options.uneven.value_or(Shardable<Dataset> ? Uneven::keep : Uneven::pad); }

  // Null for 0, 1, 2, ...
  std::shared_ptr<std::vector<std::size_t> const> order_of(std::uint64_t epoch, std::size_t num_samples) {
    if (!options.shuffle && !options.order) return nullptr;
    if (!order_ || epoch != order_epoch_) {
      order_ = std::make_shared<std::vector<std::size_t> const>(drawn(options, {num_samples, seed(), epoch}));
      order_epoch_ = epoch;
    }
    return order_;
  }
  void forget_order() { order_.reset(); }

  // Copies of the dataset for workers, which are kept for the next loop.
  std::shared_ptr<Dataset> take_copy() {
    if (copies_.empty()) return std::make_shared<Dataset>(dataset);
    auto copy = std::move(copies_.back());
    copies_.pop_back();
    return copy;
  }
  void give_back(std::vector<std::shared_ptr<Dataset>> copies) {
    for (auto& copy : copies) copies_.push_back(std::move(copy));
  }

  Dataset dataset;
  LoaderOptions options;
  Collate collate;
  Place place;
  Position position;

 private:
  std::shared_ptr<std::vector<std::size_t> const> order_;
  std::uint64_t order_epoch_ = 0;
  std::vector<std::shared_ptr<Dataset>> copies_;
};

// One loop. Workers, where there are some, start with it and end with it.
template <class Dataset, class Collate>
class Pass final : Pieces {
  using Shared = Source<Dataset, Collate>;
  using Batch = batch_t<Dataset, Collate>;
  using Sample = sample_t<Dataset>;
  static constexpr bool streams = StreamDataset<Dataset>;
  static constexpr bool reads_singly = !std::is_void_v<Sample>;

  struct MapWork {
    std::size_t first, count;  // of this rank's share
  };
  template <class Read>  // Sample, which is void where batches are made whole
  struct StreamWork {
    std::vector<Read> samples;
    std::size_t place;  // of the first, in the stream
    std::size_t reached;
  };
  using Work = std::conditional_t<streams, StreamWork<Sample>, MapWork>;
  struct Made {
    Batch batch;
    std::size_t reached;  // how far all ranks are after it
    std::unique_ptr<Transport::Flight> flight;
  };

 public:
  Pass(std::shared_ptr<Shared> source, Share share, std::size_t start)
      : source_(std::move(source)),
        share_(std::move(share)),
        reader_(make_reader(start)),
        loop_(source_->position.loop()) {
    auto const& options = source_->options;
    auto const rank = Shardable<Dataset> ? source_->place.rank : 0;  // places are the ranks' own there
    batch_seeds_ =
        core::scattered(core::scattered(core::scattered(source_->seed()) + source_->position.epoch()) + rank);
    for (std::size_t id = 0; id < std::max<std::size_t>(1, options.workers); ++id) workers_.push_back(make_worker(id));
    if constexpr (!streams && !read_shared_v<Dataset>)
      while (copies_.size() < options.workers) copies_.push_back(source_->take_copy());
    if constexpr (!streams && KnowsEpoch<Dataset>) {
      source_->dataset.set_epoch(source_->position.epoch());
      for (auto& copy : copies_) copy->set_epoch(source_->position.epoch());
    }
    if (options.workers == 0) return;
    ahead_ = std::make_unique<Ahead>(static_cast<Pieces&>(*this), options.workers, options.workers * options.prefetch);
  }
  ~Pass() {
    ahead_.reset();
    source_->give_back(std::move(copies_));
  }
  Pass(Pass const&) = delete;
  Pass& operator=(Pass const&) = delete;

  // The batch to work on; empty after the last.
  std::optional<Batch>& batch() { return batch_; }

  void advance() {
    batch_.reset();
    if (std::exchange(done_, true)) return;  // and also if this throws: an error ends the loop
    auto made = departed_ ? std::exchange(departed_, std::nullopt) : depart(next_made());
    if (!made) {
      ahead_.reset();
      source_->position.complete(loop_);
      return;
    }
    if (made->flight) made->flight->arrive();
    batch_.emplace(std::move(made->batch));
    source_->position.handed_out(loop_, made->reached);
    if (source_->place.transport && ahead_ && ahead_->has_result())
      departed_ = depart(next_made());  // it travels while this one is worked on
    done_ = false;
  }

 private:
  Worker make_worker(std::size_t id) const {
    Worker worker;
    worker.id = id;
    worker.count = source_->options.workers;
    worker.rank = source_->place.rank;
    worker.seed = core::worker_seeds(source_->seed() + source_->position.epoch(), id, source_->place.rank)[0];
    return worker;
  }
  std::conditional_t<streams, StreamReader<Dataset>, std::monostate> make_reader(std::size_t start) {
    if constexpr (streams) {
      // A stream without skip() reads what it passes over, and may ask for its worker meanwhile. tests/data/resume.cpp
      Worker passing = make_worker(0);
      WorkerScope const scope(passing);
      return StreamReader<Dataset>(source_->dataset, source_->position.epoch(), start, source_->uneven(),
                                   source_->place.num_ranks, source_->place.rank);
    } else {
      return std::monostate();
    }
  }

  std::optional<Made> next_made() {
    if (ahead_) {
      auto const result = ahead_->next();
      return result ? std::optional(std::move(*static_cast<Made*>(result.get()))) : std::nullopt;
    }
    auto work = drawn(0);
    return work ? std::optional(made_of(*work, 0)) : std::nullopt;
  }
  std::shared_ptr<void> draw(std::size_t worker) override {
    auto work = drawn(worker);
    return work ? std::make_shared<Work>(std::move(*work)) : nullptr;
  }
  std::shared_ptr<void> make(std::shared_ptr<void> work, std::size_t worker) override {
    return std::make_shared<Made>(made_of(*static_cast<Work*>(work.get()), worker));
  }

  std::optional<Made> depart(std::optional<Made> made) {
    if (!made) return made;
    auto const& place = source_->place;
    if (place.transport)
      made->flight = place.transport->depart(tensors_elsewhere(made->batch, place.device));
    else
      for_each_leaf<at::Tensor>(made->batch, [&place](at::Tensor& tensor) { move_in_place(tensor, place.device); });
    return made;
  }

  std::optional<Work> drawn(std::size_t worker) {
    std::size_t const most = source_->options.batch_size;
    Work work{};
    if constexpr (streams) {
      WorkerScope const scope(at_work(worker, reader_.place(), 0));
      work.place = reader_.place();
      work.samples.reserve(most);
      while (work.samples.size() < most) {
        auto sample = reader_.next();
        if (!sample) break;
        work.samples.push_back(std::move(*sample));
      }
      work.reached = reader_.reached();
      return is_batch(work.samples.size()) ? std::optional(std::move(work)) : std::nullopt;
    } else {
      work = {next_, std::min(most, share_.size() - next_)};
      next_ += work.count;
      return is_batch(work.count) ? std::optional(work) : std::nullopt;
    }
  }
  bool is_batch(std::size_t count) const {
    return count == source_->options.batch_size || (count != 0 && !source_->options.drop_last);
  }

  Made made_of(Work& work, std::size_t worker) {
    auto made = [&] {
      if constexpr (streams) {
        WorkerScope const scope(at_work(worker, work.place, 1));
        std::size_t const count = work.samples.size();
        return Made{
            collated(std::move(work.samples),
                     [&] { return core::message("the ", count, " samples of the stream from ", work.place, " on"); }),
            work.reached, nullptr};
      } else {
        WorkerScope const scope(at_work(worker, share_.place(work.first), 1));
        std::vector<std::size_t> indices(work.count);
        for (std::size_t i = 0; i < work.count; ++i) indices[i] = share_[work.first + i];
        return Made{read(indices, worker), share_.reached(work.first + work.count), nullptr};
      }
    }();
    if (auto const& transport = source_->place.transport)
      for_each_leaf<at::Tensor>(made.batch, [&transport](at::Tensor& tensor) {
        if (tensor.defined() && tensor.is_cpu()) tensor = transport->pin(tensor);
      });
    return made;
  }

  // See [Note: random numbers in workers].
  Worker& at_work(std::size_t worker, std::size_t place, std::uint64_t step) {
    workers_[worker].begin_batch(core::scattered(core::scattered(batch_seeds_ + place) + step));
    return workers_[worker];
  }

  Batch read(std::vector<std::size_t>& indices, std::size_t worker)
    requires(!streams)
  {
    auto& dataset = [&]() -> auto& {
      if constexpr (read_shared_v<Dataset>)
        return std::as_const(source_->dataset);
      else
        return copies_.empty() ? source_->dataset : *copies_[worker];
    }();
    if constexpr (reads_singly) {
      std::vector<Sample> samples;
      samples.reserve(indices.size());
      for (std::size_t const index : indices) {
        try {
          samples.push_back(read_one(dataset, index));
        } catch (...) {
          fail_while("weft: rank ", source_->place.rank, ", sample ", index, " of the dataset");
        }
      }
      return collated(std::move(samples), [&indices] { return list_of(indices) + " of the dataset"; });
    } else {
      try {
        return finished(source_->collate, dataset.get_batch(indices));
      } catch (...) {
        fail_while("weft: rank ", source_->place.rank, ", get_batch of ", list_of(indices));
      }
    }
  }

  template <class Samples, class Which>
  Batch collated(Samples samples, Which which) {
    try {
      return std::as_const(source_->collate)(std::move(samples));
    } catch (...) {
      fail_while("weft: rank ", source_->place.rank, ", a batch of ", which());
    }
  }

  std::shared_ptr<Shared> source_;
  Share share_;
  std::size_t next_ = 0;  // of the share
  std::conditional_t<streams, StreamReader<Dataset>, std::monostate> reader_;
  std::uint64_t loop_;
  std::uint64_t batch_seeds_;
  std::vector<Worker> workers_;
  std::vector<std::shared_ptr<Dataset>> copies_;
  std::optional<Batch> batch_;
  std::optional<Made> departed_;
  bool done_ = false;
  std::unique_ptr<Ahead> ahead_;
};

}  // namespace detail
}  // namespace weft::data
