#include "ranks.hpp"

#include <weft/data/loader.hpp>

#include <atomic>
#include <filesystem>
#include <set>
#include <thread>

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::Equals;
using weft::data::Loader;
using weft::data::LoaderOptions;

namespace {

std::size_t num_threads() {
  auto const tasks = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

// What datasets below saw, from all threads.
struct Seen {
  std::atomic<std::size_t> reads = 0, copies = 0, at_once = 0, most_at_once = 0;
  std::mutex mutex;
  std::set<std::thread::id> threads;
};

// Reading sample i takes a while, the more the smaller i is within its batch of 4: workers would overtake each other.
struct Slow {
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();
  std::size_t fails_at = ~std::size_t{0};
  std::size_t size() const { return 40; }
  std::int64_t get(std::size_t index) const {
    auto const now = ++seen->at_once;
    for (auto most = seen->most_at_once.load(); most < now && !seen->most_at_once.compare_exchange_weak(most, now);) {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(index / 4 % 2 == 0 ? 600 : 50));
    --seen->at_once;
    ++seen->reads;
    {
      std::scoped_lock const lock(seen->mutex);
      seen->threads.insert(std::this_thread::get_id());
    }
    if (index == fails_at) throw std::runtime_error("rotten");
    return static_cast<std::int64_t>(index);
  }
};

// Not readable when const: each worker needs its own.
struct Counting {
  explicit Counting(std::shared_ptr<Seen> s) : seen(std::move(s)) {}
  Counting(Counting const& other) : seen(other.seen) { ++seen->copies; }
  Counting(Counting&&) = default;
  std::shared_ptr<Seen> seen;
  std::size_t size() const { return 8; }
  std::size_t operator[](std::size_t index) { return index; }
};

struct Noisy {
  std::size_t size() const { return 12; }
  at::Tensor get(std::size_t) const { return at::rand({2}, weft::data::this_worker().generator()); }
};

template <class Loaded>
at::Tensor all_of(Loaded& loader) {
  std::vector<at::Tensor> batches;
  for (auto& batch : loader) batches.push_back(batch);
  return at::cat(batches);
}

// A double of what moves batches to a GPU: the device is "meta", so that a copy is seen as such.
struct Recorded final : weft::data::Transport {
  std::mutex mutex;
  std::vector<std::string> events;
  std::set<std::thread::id> pinned_on;
  void note(std::string event) {
    std::scoped_lock const lock(mutex);
    events.push_back(std::move(event));
  }
  std::size_t count(std::string const& event) {
    std::scoped_lock const lock(mutex);
    return static_cast<std::size_t>(std::count(events.begin(), events.end(), event));
  }
  at::Tensor pin(at::Tensor const& tensor) override {
    note("pin");
    std::scoped_lock const lock(mutex);
    pinned_on.insert(std::this_thread::get_id());
    return tensor.clone();
  }
  std::unique_ptr<Flight> depart(std::vector<at::Tensor*> const& tensors) override {
    struct Noted final : Flight {
      explicit Noted(Recorded& it, std::size_t n) : recorded(it), number(n) {}
      void arrive() override { recorded.note("arrive " + std::to_string(number)); }
      Recorded& recorded;
      std::size_t number;
    };
    for (at::Tensor* tensor : tensors) *tensor = tensor->to(at::kMeta);
    note("depart " + std::to_string(departed));
    return std::make_unique<Noted>(*this, departed++);
  }
  std::size_t departed = 0;
};

}  // namespace

TEST_CASE("workers read at once, in threads that live as long as the loop, and hand out in order", "[data]") {
  auto const workers = GENERATE(1u, 2u, 5u);
  Slow dataset;
  Loader loader(dataset, {.batch_size = 4, .workers = workers});
  auto const before = num_threads();
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::int64_t next = 0;
    for (auto& batch : loader) {
      CHECK(batch.equal(at::arange(next, next + 4)));
      next += 4;
      if (next == 4 && workers < 5)
        CHECK(num_threads() == before + workers);  // five may have made all ten batches, and gone
    }
    CHECK(next == 40);
    CHECK(num_threads() == before);
  }
  CHECK(dataset.seen->most_at_once <= workers);
  if (workers > 1) CHECK(dataset.seen->most_at_once > 1);
  CHECK(dataset.seen->threads.count(std::this_thread::get_id()) == 0);
  CHECK(dataset.seen->reads == 80);
}

TEST_CASE("workers are ahead by so many batches and no more", "[data]") {
  Slow dataset;
  Loader loader(dataset, {.batch_size = 1, .workers = 2, .prefetch = 3});
  auto batches = loader.begin();
  auto const limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (dataset.seen->reads < 7 && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(dataset.seen->reads == 7);  // one is handed out
}

TEST_CASE("a loop that is left early ends its threads, with the loader or before it", "[data]") {
  auto const before = num_threads();
  Slow dataset;
  {
    auto loader = std::make_unique<Loader<Slow>>(dataset, LoaderOptions{.batch_size = 2, .workers = 3});
    for (auto& batch : *loader) {
      CHECK(batch[0].item<int>() == 0);
      break;
    }
    CHECK(num_threads() == before);
    CHECK(dataset.seen->reads <= 2 + 2 * 6);
    auto batches = loader->begin();
    loader.reset();  // the loop goes on with what it shares
    CHECK((*++batches)[0].item<int>() == 2);
  }
  CHECK(num_threads() == before);
  Loader unused(dataset, {.batch_size = 2, .workers = 3});
  CHECK(num_threads() == before);
}

TEST_CASE("what a worker throws arrives in its turn, with the sample's number", "[data]") {
  auto const workers = GENERATE(0u, 3u);
  auto const before = num_threads();
  Slow dataset;
  dataset.fails_at = 13;
  Loader loader(dataset, {.batch_size = 4, .workers = workers}, {.num_ranks = 1, .rank = 0});
  std::size_t batches = 0;
  auto loop = [&] {
    for (auto& batch : loader) batches += batch.size(0) == 4;
  };
  CHECK_THROWS_MATCHES(loop(), weft::DataError,
                       Catch::Matchers::Message("weft: rank 0, sample 13 of the dataset: rotten"));
  CHECK(batches == 3);
  CHECK(loader.state().samples == 12);
  CHECK(num_threads() == before);
  std::string inner;
  try {
    loop();
  } catch (std::exception const& error) {
    try {
      std::rethrow_if_nested(error);
    } catch (std::runtime_error const& nested) {
      inner = nested.what();
    }
  }
  CHECK(inner == "rotten");

  auto batch = loader.begin();
  for (int i = 0; i < 2; ++i) ++batch;
  CHECK_THROWS_WITH(++batch, ContainsSubstring("sample 13"));
  CHECK(batch == loader.end());  // an error ends the loop
  ++batch;
  CHECK(batch == loader.end());

  std::vector<at::Tensor> uneven{at::ones({2}), at::ones({2}), at::ones({3})};
  Loader unlike(uneven, {.batch_size = 3, .workers = workers});
  CHECK_THROWS_WITH(unlike.begin(), ContainsSubstring("a batch of samples 0, 1, 2 of the dataset") &&
                                        ContainsSubstring("sample 2 of the batch has a tensor of shape [3]"));
}

TEST_CASE("a dataset that is not read when const is copied once for each worker", "[data]") {
  auto const seen = std::make_shared<Seen>();
  Loader loader(Counting(seen), {.batch_size = 1, .workers = 3});
  auto const made = seen->copies.load();
  for (int epoch = 0; epoch < 3; ++epoch) CHECK(all_of(loader).equal(at::arange(8)));
  CHECK(seen->copies == made + 3);
  Loader here(Counting(seen), {.batch_size = 1});
  auto const before = seen->copies.load();
  CHECK(all_of(here).equal(at::arange(8)));
  CHECK(seen->copies == before);
}

TEST_CASE(
    "random numbers of samples are the same with any number of workers, and others in each epoch and on each rank",
    "[data]") {
  auto const draws = [](std::size_t workers, std::size_t rank, std::uint64_t seed) {
    Loader loader(Noisy(), {.batch_size = 2, .workers = workers, .seed = seed}, {.num_ranks = 2, .rank = rank});
    std::vector<at::Tensor> epochs;
    for (int epoch = 0; epoch < 2; ++epoch) epochs.push_back(all_of(loader));
    return at::stack(epochs);
  };
  torch::manual_seed(5);
  auto const after = at::rand({2});
  torch::manual_seed(5);
  auto const here = draws(0, 0, 1);
  CHECK(draws(1, 0, 1).equal(here));
  CHECK(draws(3, 0, 1).equal(here));
  CHECK(at::rand({2}).equal(after));  // the model's generator is left alone
  CHECK_FALSE(here[0].equal(here[1]));
  CHECK_FALSE(draws(0, 1, 1).equal(here));
  CHECK_FALSE(draws(0, 0, 2).equal(here));
  CHECK(std::get<0>(at::_unique(here)).numel() == here.numel());
}

TEST_CASE("a worker knows which one it is", "[data]") {
  CHECK_FALSE(weft::data::in_worker());
  CHECK_THROWS_WITH(weft::data::this_worker(), ContainsSubstring("outside of a loader"));
  struct Who {
    std::size_t size() const { return 8; }
    std::vector<std::int64_t> get(std::size_t) const {
      auto const& worker = weft::data::this_worker();
      return {static_cast<std::int64_t>(worker.id), static_cast<std::int64_t>(worker.count),
              static_cast<std::int64_t>(worker.rank), static_cast<std::int64_t>(worker.seed)};
    }
  };
  Loader loader(Who(), {.batch_size = 1, .workers = 2, .seed = 42}, {.num_ranks = 2, .rank = 1});
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    auto const rows = all_of(loader);
    CHECK(rows.select(1, 1).eq(2).all().item<bool>());
    CHECK(rows.select(1, 2).eq(1).all().item<bool>());
    for (std::int64_t i = 0; i < rows.size(0); ++i) {
      auto const worker = static_cast<std::uint64_t>(rows[i][0].item<std::int64_t>());
      CHECK(worker < 2);
      CHECK(static_cast<std::uint64_t>(rows[i][3].item<std::int64_t>()) ==
            weft::core::worker_seeds(42 + epoch, worker, 1)[0]);
    }
  }
}

TEST_CASE("workers compute on one thread each, and leave the program's number of threads as it was", "[data]") {
  struct Threads {
    std::size_t size() const { return 6; }
    int get(std::size_t) const { return at::get_num_threads(); }
  };
  // In a rank: LibTorch's threads stay, and a process with several starts none by Fork.
  CHECK(test::on_ranks(1, [](test::Run<>&) {
          at::set_num_threads(3);
          Loader loader(Threads(), {.batch_size = 1, .workers = 2});
          test::expect(all_of(loader).eq(1).all().item<bool>(), "one thread each");
          return at::get_num_threads();
        }) == 3);
}

TEST_CASE("batches are pinned where they are made, and travel while the loop works on the one before", "[data]") {
  auto const workers = GENERATE(0u, 1u);
  auto const transport = std::make_shared<Recorded>();
  Slow dataset;
  Loader loader(dataset, {.batch_size = 4, .workers = workers}, {.device = at::kMeta, .transport = transport});
  std::size_t batches = 0;
  for (auto& batch : loader) {
    CHECK(batch.is_meta());
    CHECK(transport->count("arrive " + std::to_string(batches)) == 1);
    ++batches;
    if (batches == 3) {
      // The worker has the next ones ready meanwhile; the one after that sets out as soon as this loop asks again.
      auto const limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (workers > 0 && transport->count("pin") < 5 && std::chrono::steady_clock::now() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // what was pinned is handed in a moment later
    }
    if (batches == 4 && workers > 0) {
      CHECK(transport->count("depart 4") == 1);
      CHECK(transport->count("arrive 4") == 0);
    }
    if (workers == 0) CHECK(transport->count("depart " + std::to_string(batches)) == 0);
  }
  CHECK(batches == 10);
  CHECK(transport->count("pin") == 10);
  CHECK(transport->departed == 10);
  CHECK(transport->pinned_on.count(std::this_thread::get_id()) == (workers == 0));
}
