#include "test.hpp"

#include <weft/data/loader.hpp>

using Catch::Matchers::ContainsSubstring;
using weft::data::Loader;
using weft::data::LoaderOptions;
using weft::data::Uneven;

namespace {

// 0, 1, 2, ... below `size`.
struct Counter {
  std::int64_t size = 10;
  std::int64_t at = 0;
  std::optional<std::int64_t> next() {
    if (at == fails_at) throw std::runtime_error("torn");
    return at < size ? std::optional(at++) : std::nullopt;
  }
  std::int64_t fails_at = -1;
};
struct Sized : Counter {
  std::size_t size() const { return static_cast<std::size_t>(Counter::size); }
};
// Passes over samples without reading them; the epoch is in the samples.
struct Skipping : Counter {
  std::shared_ptr<std::size_t> reads = std::make_shared<std::size_t>(0);
  std::int64_t base = 0;
  std::optional<std::int64_t> next() {
    auto sample = Counter::next();
    if (sample) ++*reads, *sample += base;
    return sample;
  }
  std::size_t skip(std::size_t count) {
    auto const passed = std::min(static_cast<std::int64_t>(count), Counter::size - at);
    at += passed;
    return static_cast<std::size_t>(passed);
  }
  void set_epoch(std::uint64_t epoch) { base = 100 * static_cast<std::int64_t>(epoch); }
};
// Cuts itself: ranks have neighboring samples.
struct Cut : Counter {
  std::size_t length() const { return static_cast<std::size_t>(Counter::size); }
  void shard(std::size_t count, std::size_t index) {
    at = static_cast<std::int64_t>(length() * index / count);
    Counter::size = static_cast<std::int64_t>(length() * (index + 1) / count);
  }
};

using Batches = std::vector<std::vector<std::int64_t>>;

template <class Loaded>
Batches batches_of(Loaded& loader) {
  Batches batches;
  for (auto& batch : loader)
    batches.emplace_back(batch.template const_data_ptr<std::int64_t>(),
                         batch.template const_data_ptr<std::int64_t>() + batch.numel());
  return batches;
}
template <class Stream>
Batches on_rank(Stream stream, std::size_t rank, std::size_t num_ranks, LoaderOptions options) {
  Loader loader(stream, options, {.num_ranks = num_ranks, .rank = rank});
  auto const batches = batches_of(loader);
  if (auto const length = loader.length()) CHECK(*length == batches.size());
  return batches;
}

}  // namespace

TEST_CASE("a stream is read anew by each loop, in order, with any number of workers", "[data]") {
  auto const workers = GENERATE(0u, 1u, 3u);
  Loader loader(Counter{7}, {.batch_size = 2, .workers = workers});
  for (int epoch = 0; epoch < 2; ++epoch) CHECK(batches_of(loader) == Batches{{0, 1}, {2, 3}, {4, 5}, {6}});
  CHECK_FALSE(loader.length().has_value());
  Loader full(Counter{7}, {.batch_size = 2, .drop_last = true, .workers = workers});
  CHECK(batches_of(full) == Batches{{0, 1}, {2, 3}, {4, 5}});
  Loader empty(Counter{0}, {.batch_size = 2, .workers = workers});
  CHECK(batches_of(empty).empty());
}

// As a dataset of known length is dealt: tests/data/sampler.cpp.
TEST_CASE("ranks take turns in a stream, and its last round is padded, dropped or kept", "[data]") {
  auto const workers = GENERATE(0u, 2u);
  auto const all = [&](auto stream, std::size_t num_ranks, Uneven uneven) {
    Batches ranks;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      auto& samples = ranks.emplace_back();
      for (auto const& batch :
           on_rank(stream, rank, num_ranks, {.batch_size = 2, .workers = workers, .uneven = uneven}))
        samples.insert(samples.end(), batch.begin(), batch.end());
    }
    return ranks;
  };
  CHECK(all(Sized{{10}}, 4, Uneven::pad) == Batches{{0, 4, 8}, {1, 5, 9}, {2, 6, 0}, {3, 7, 1}});
  CHECK(all(Sized{{10}}, 4, Uneven::drop) == Batches{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  CHECK(all(Sized{{10}}, 4, Uneven::keep) == Batches{{0, 4, 8}, {1, 5, 9}, {2, 6}, {3, 7}});
  CHECK(all(Counter{9}, 3, Uneven::pad) == Batches{{0, 3, 6}, {1, 4, 7}, {2, 5, 8}});
  CHECK(all(Counter{2}, 4, Uneven::pad) == Batches{{0}, {1}, {0}, {1}});
  CHECK(all(Counter{2}, 4, Uneven::drop) == Batches{{}, {}, {}, {}});
}

TEST_CASE("a stream that can skip is asked for this rank's samples alone, and is told the epoch", "[data]") {
  Skipping stream{{.size = 12}};
  Loader loader(stream, {.batch_size = 2}, {.num_ranks = 3, .rank = 1});
  CHECK(batches_of(loader) == Batches{{1, 4}, {7, 10}});
  CHECK(*stream.reads == 4);
  CHECK(batches_of(loader) == Batches{{101, 104}, {107, 110}});
  loader.load_state({.epoch = 5, .samples = 6, .num_ranks = 3});
  *stream.reads = 0;
  CHECK(batches_of(loader) == Batches{{507, 510}});
  CHECK(*stream.reads == 2);
}

TEST_CASE("a stream may cut itself, and ends on each rank where its part does", "[data]") {
  auto const workers = GENERATE(0u, 3u);
  CHECK(on_rank(Cut{{.size = 7}}, 0, 2, {.batch_size = 2, .workers = workers}) == Batches{{0, 1}, {2}});
  CHECK(on_rank(Cut{{.size = 7}}, 1, 2, {.batch_size = 2, .workers = workers}) == Batches{{3, 4}, {5, 6}});
  CHECK_THROWS_WITH(
      on_rank(Cut{}, 1, 2, {.uneven = Uneven::pad}),
      ContainsSubstring(
          "a stream with shards of its own ends on each rank where its shard does, so .uneven cannot be pad"));
  CHECK(on_rank(Cut{{.size = 2}}, 0, 1, {.uneven = Uneven::pad}) == Batches{{0}, {1}});
}

TEST_CASE("what a stream throws arrives after the batches before it, with its place", "[data]") {
  auto const workers = GENERATE(0u, 2u);
  Loader loader(Counter{.size = 10, .fails_at = 5}, {.batch_size = 1, .workers = workers}, {.num_ranks = 2, .rank = 0});
  std::size_t count = 0;
  auto loop = [&] {
    for (auto& batch : loader) count += static_cast<std::size_t>(batch.numel());
  };
  CHECK_THROWS_MATCHES(loop(), weft::DataError, Catch::Matchers::Message("weft: rank 0, sample 5 of the stream: torn"));
  CHECK(count == 2);  // 0 and 2; 4 belongs to the round of 5
}

TEST_CASE("a stream's order is its own", "[data]") {
  CHECK_THROWS_WITH(Loader(Counter{}, {.shuffle = true}), ContainsSubstring("a stream comes in its own order"));
  CHECK_THROWS_WITH(Loader(Counter{}, {.order = weft::data::random_order}),
                    ContainsSubstring("a stream comes in its own order"));
}

TEST_CASE("an endless stream is read as far as the loop goes", "[data]") {
  struct Endless {
    std::int64_t at = 0;
    std::optional<std::int64_t> next() { return at++; }
  };
  Loader loader(Endless(), {.batch_size = 4, .workers = 2}, {.num_ranks = 2, .rank = 1});
  std::int64_t next = 1;
  for (auto& batch : loader) {
    CHECK(batch.equal(at::arange(next, next + 8, 2)));
    if ((next += 8) > 60) break;
  }
}
