#include "test.hpp"

#include <weft/data/loader.hpp>
#include <weft/report/progress.hpp>

#include <cstdio>
#include <memory>
#include <numeric>
#include <string>

using Catch::Matchers::ContainsSubstring;
using weft::data::Loader;
using weft::data::LoaderOptions;
using weft::data::LoaderState;
using weft::data::Uneven;

namespace {

using Samples = std::vector<std::int64_t>;

Samples numbers(std::int64_t size) {
  Samples samples(static_cast<std::size_t>(size));
  std::iota(samples.begin(), samples.end(), 0);
  return samples;
}
struct Counter {
  std::int64_t size = 10;
  std::int64_t at = 0;
  std::optional<std::int64_t> next() { return at < size ? std::optional(at++) : std::nullopt; }
};
struct Halves : Counter {
  void shard(std::size_t count, std::size_t index) {
    at = static_cast<std::int64_t>(index) * size / static_cast<std::int64_t>(count);
    size = size / static_cast<std::int64_t>(count) + at;
  }
};
struct Asking : Counter {
  std::optional<std::int64_t> next() {
    static_cast<void>(weft::data::this_worker().generator());
    return Counter::next();
  }
};

void append(Samples& samples, at::Tensor const& batch) {
  samples.insert(samples.end(), batch.const_data_ptr<std::int64_t>(),
                 batch.const_data_ptr<std::int64_t>() + batch.numel());
}
// The next `steps` batches, and the state after them.
template <class Loaded>
LoaderState read(Loaded& loader, std::size_t steps, Samples& samples) {
  for (auto& batch : loader) {
    append(samples, batch);
    if (--steps == 0) return loader.state();
  }
  return loader.state();
}
constexpr std::size_t all = ~std::size_t{0};

}  // namespace

TEST_CASE("a loader goes on after the batch at which its state was taken, in whatever number of workers", "[data]") {
  auto const [before, after] = GENERATE(std::pair(0u, 0u), std::pair(3u, 0u), std::pair(0u, 2u), std::pair(3u, 1u));
  auto const steps = GENERATE(1u, 2u, 4u);
  auto const size = GENERATE(20, 23);
  auto const make = [&](std::size_t workers, std::uint64_t seed) {
    return Loader(numbers(size), {.batch_size = 3, .shuffle = true, .workers = workers, .seed = seed},
                  {.num_ranks = 2, .rank = 1});
  };
  auto whole = make(0, 4);
  Samples expected;
  for (int epoch = 0; epoch < 3; ++epoch) read(whole, all, expected);

  auto first = make(before, 4);
  Samples samples;
  read(first, all, samples);
  auto const state = read(first, steps, samples);
  CHECK(state.epoch == 1);

  auto second = make(after, 99);  // the seed is part of the state
  second.load_state(LoaderState::from_text(state.to_text()));
  CHECK(second.state() == state);
  CHECK(second.epoch() == 1);
  second.set_epoch(1);  // what a loop over epochs says
  read(second, all, samples);
  CHECK(second.state() ==
        LoaderState{
            .epoch = 2, .num_samples = static_cast<std::uint64_t>(size), .seed = 4, .num_ranks = 2, .shuffled = true});
  read(second, all, samples);
  CHECK(samples == expected);
}

TEST_CASE("after the last batch there is nothing left in the epoch, and then comes the next", "[data]") {
  Loader loader(numbers(6), {.batch_size = 2, .workers = 2});
  Samples samples;
  auto const state = read(loader, 3, samples);
  CHECK(state.samples == 6);
  Loader next(numbers(6), {.batch_size = 2});
  next.load_state(state);
  Samples rest;
  read(next, all, rest);
  CHECK(rest.empty());
  CHECK(next.epoch() == 0);
  read(next, all, rest);
  CHECK(rest == numbers(6));
  CHECK(next.epoch() == 1);

  next.load_state(state);
  next.set_epoch(7);  // another epoch is one from its start
  CHECK(next.state().samples == 0);
  read(next, 1, rest);
  CHECK(next.epoch() == 7);
}

TEST_CASE("a bar over a loader that goes on within an epoch begins there, and is full at its end", "[data]") {
  auto const file = std::unique_ptr<std::FILE, int (*)(std::FILE*)>(std::tmpfile(), &std::fclose);
  auto const last_line_of_a_resumed_epoch = [&](auto loader, auto again) {
    auto loop = loader.begin();
    for (int step = 0; step < 3; ++step) ++loop;
    again.load_state(loader.state());
    CHECK(again.batches_done() == 4);
    std::rewind(file.get());
    for (auto const& batch : weft::report::progress(again, {.out = file.get()})) static_cast<void>(batch);
    CHECK(again.batches_done() == 0);
    std::rewind(file.get());
    std::string text(4096, ' ');
    text.resize(std::fread(text.data(), 1, text.size(), file.get()));
    return text;
  };
  LoaderOptions const options{.batch_size = 4};
  CHECK_THAT(last_line_of_a_resumed_epoch(Loader(numbers(37), options), Loader(numbers(37), options)),
             ContainsSubstring("10/10"));
  CHECK_THAT(last_line_of_a_resumed_epoch(Loader(Counter{.size = 37}, options), Loader(Counter{.size = 37}, options)),
             ContainsSubstring("10"));
}

TEST_CASE("other numbers of ranks and other batches share what is left of the epoch", "[data]") {
  auto const [ranks_before, ranks_after] = GENERATE(std::pair(2u, 3u), std::pair(4u, 1u), std::pair(1u, 4u),
                                                    std::pair(3u, 2u));
  auto const streams = GENERATE(false, true);
  std::size_t const size = 50, batch_after = 4;
  Samples seen;
  LoaderState state;
  auto const run = [&](std::size_t num_ranks, std::size_t batch, std::size_t steps, bool resumes) {
    LoaderState reached;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      auto const loop = [&](auto loader) {
        if (resumes) loader.load_state(state);
        auto const now = read(loader, steps, seen);
        if (rank == 0) reached = now;
        CHECK(now.samples == reached.samples);
      };
      LoaderOptions const options{
          .batch_size = batch, .shuffle = !streams, .workers = rank % 2, .uneven = Uneven::keep, .seed = 3};
      if (streams)
        loop(Loader(Counter{static_cast<std::int64_t>(size)}, options, {.num_ranks = num_ranks, .rank = rank}));
      else
        loop(Loader(numbers(size), options, {.num_ranks = num_ranks, .rank = rank}));
    }
    return reached;
  };
  state = run(ranks_before, 3, 3, false);
  CHECK(state.samples == ranks_before * 9);
  CHECK(seen.size() == ranks_before * 9);
  run(ranks_after, batch_after, all, true);
  std::sort(seen.begin(), seen.end());
  CHECK(seen == numbers(size));  // each once
}

TEST_CASE("a stream with shards of its own counts what is left by its rank, and ends where another rank's was longer",
          "[data]") {
  auto const resumed = [](std::uint64_t samples, std::int64_t size, std::size_t rank) {
    Loader loader(Halves{{.size = size}}, {.batch_size = 2}, {.num_ranks = 2, .rank = rank});
    auto state = loader.state();
    state.samples = samples;
    loader.load_state(state);
    return loader;
  };
  auto loader = resumed(4, 20, 0);
  CHECK(loader.batches_done() == 2);
  std::size_t left = 0;
  for (auto const& batch : loader) left += static_cast<std::size_t>(batch.numel());
  CHECK(left == 6);
  auto shorter = resumed(4, 7, 0);  // its shard has 3
  CHECK(shorter.begin() == shorter.end());
  // Padding is counted from the place where an epoch goes on.
  for (std::size_t rank = 0; rank < 3; ++rank) {
    Loader counted(numbers(10), {.batch_size = 1}, {.num_ranks = 3, .rank = rank});
    auto state = counted.state();
    state.samples = 4;
    counted.load_state(state);
    CHECK(counted.repeats() == 0);
  }
}

TEST_CASE("ranks that differ in length have equal states after equally many steps", "[data]") {
  auto const streams = GENERATE(false, true);
  auto const steps = GENERATE(1u, 2u, 3u);
  auto const reached = [&](std::size_t rank) {
    Samples seen;
    weft::data::LoaderOptions const options{.batch_size = 1, .uneven = Uneven::keep};
    weft::data::Place const place{.num_ranks = 4, .rank = rank};
    if (streams) {
      Loader loader(Counter{.size = 10}, options, place);
      return read(loader, steps, seen).samples;
    }
    Loader loader(numbers(10), options, place);
    return read(loader, steps, seen).samples;
  };
  for (std::size_t rank = 0; rank < (steps == 3 ? 2u : 4u); ++rank)
    CHECK(reached(rank) == std::min(10u, 4 * steps));  // two ranks have no third batch
}

TEST_CASE("a stream may ask for its worker while it passes over what was handed out before", "[data]") {
  auto const workers = GENERATE(0u, 2u);
  Loader loader(Asking{{.size = 10}}, {.batch_size = 2, .workers = workers}, {.num_ranks = 2, .rank = 1});
  loader.load_state({.samples = 4, .num_ranks = 2});
  Samples rest;
  read(loader, all, rest);
  CHECK(rest == Samples{5, 7, 9});
}

TEST_CASE("a state that does not fit is refused with what differs", "[data]") {
  LoaderState const state{.epoch = 2, .samples = 4, .num_samples = 10, .seed = 1, .num_ranks = 2, .shuffled = true};
  Loader fits(numbers(10), {.batch_size = 2, .shuffle = true}, {.num_ranks = 2, .rank = 0});
  CHECK_NOTHROW(fits.load_state(state));
  Loader longer(numbers(11), {.batch_size = 2, .shuffle = true});
  CHECK_THROWS_WITH(longer.load_state(state),
                    ContainsSubstring("had 10 samples, this one has 11") && ContainsSubstring("set_epoch(2)"));
  CHECK_THROWS_AS(longer.load_state(state), weft::CheckpointError);
  CHECK_NOTHROW(longer.load_state(
      {.epoch = 2, .num_samples = 10, .shuffled = true}));  // at the start of an epoch nothing has to fit
  Loader in_order(numbers(10), {.batch_size = 2});
  CHECK_THROWS_WITH(in_order.load_state(state),
                    ContainsSubstring("was shuffled and in the middle of an epoch, this one is in order"));
  Loader of_own_order(numbers(10), {.order = weft::data::weighted(std::vector<double>(10, 1))});
  CHECK_THROWS_WITH(
      in_order.load_state({.epoch = 2, .samples = 4, .num_samples = 10, .shuffled = of_own_order.state().shuffled}),
      ContainsSubstring("give both the same .shuffle and .order"));

  Loader sharded(Halves{{.size = 12}}, {.batch_size = 2}, {.num_ranks = 3, .rank = 1});
  CHECK_THROWS_WITH(sharded.load_state({.samples = 4, .num_ranks = 2}),
                    ContainsSubstring("was read by 2 ranks up to the middle of an epoch, these are 3"));
  sharded.load_state({.samples = 2, .num_ranks = 3});
  Samples rest;
  read(sharded, all, rest);
  CHECK(rest == Samples{6, 7});

  Loader shorter(Counter{.size = 3}, {.batch_size = 1});
  shorter.load_state({.samples = 5});
  CHECK_THROWS_WITH(shorter.begin(), ContainsSubstring("was 5 samples into the stream, which ends after 3"));

  CHECK(LoaderState::from_text(state.to_text()) == state);
  CHECK(state.to_text() == "weft loader 1: epoch 2, 4 of 10 samples, seed 1, 2 ranks, shuffled");
  for (auto const* text :
       {"", "weft loader 1: epoch x", "weft loader 2: epoch 2, 4 of 10 samples, seed 1, 2 ranks, shuffled",
        "weft loader 1: epoch 2, 4 of 10 samples, seed 1, 2 ranks, sorted"})
    CHECK_THROWS_WITH(LoaderState::from_text(text), ContainsSubstring("is not the state of a loader"));
}
