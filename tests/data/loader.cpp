#include "test.hpp"

#include <weft/data/loader.hpp>

#include <map>
#include <numeric>
#include <set>

using weft::data::Loader;
using weft::data::LoaderOptions;
using weft::data::Uneven;

namespace {

// Sample i is ({i, i}, i).
struct Counting : torch::data::datasets::Dataset<Counting> {
  explicit Counting(std::size_t size) : size_(size) {}
  torch::data::Example<> get(std::size_t index) override {
    if (index == fails_at) throw std::runtime_error("sample " + std::to_string(index) + " is rotten");
    auto const value = static_cast<double>(index);
    return {torch::full({2}, value), torch::full({}, value)};
  }
  std::optional<std::size_t> size() const override { return size_; }
  std::size_t size_;
  std::size_t fails_at = ~std::size_t{0};
};

// A batch of one's own, built in one go.
struct Named {
  at::Tensor indices;
  std::string note;
};
template <class F>
void weft_visit(Named& batch, F&& f) {
  f(batch.indices);
}
struct WholeBatches : torch::data::datasets::BatchDataset<WholeBatches, Named> {
  bool fails = false;
  Named get_batch(torch::ArrayRef<std::size_t> indices) override {
    TORCH_CHECK(!fails || indices[0] == 0, "no batch from ", indices[0]);
    std::vector<std::int64_t> values(indices.begin(), indices.end());
    return {torch::tensor(values), "batch of " + std::to_string(indices.size())};
  }
  std::optional<std::size_t> size() const override { return 5; }
};
struct Single : torch::data::datasets::Dataset<Single, torch::data::TensorExample> {
  torch::data::TensorExample get(std::size_t index) override { return torch::full({3}, static_cast<double>(index)); }
  std::optional<std::size_t> size() const override { return 4; }
};
struct Endless : torch::data::datasets::Dataset<Endless> {
  torch::data::Example<> get(std::size_t) override { return {}; }
  std::optional<std::size_t> size() const override { return std::nullopt; }
};

template <class Loaded>
std::vector<std::vector<int>> targets(Loaded& loader) {
  std::vector<std::vector<int>> batches;
  for (auto& batch : loader) {
    CHECK(batch.data.sizes() == at::IntArrayRef({batch.target.size(0), 2}));
    auto& values = batches.emplace_back();
    for (std::int64_t i = 0; i < batch.target.size(0); ++i) values.push_back(batch.target[i].template item<int>());
  }
  return batches;
}
using Batches = std::vector<std::vector<int>>;

}  // namespace

TEST_CASE("a loader stacks samples into batches", "[data]") {
  auto const workers = GENERATE(0u, 2u);
  Loader loader(Counting(5), {.batch_size = 2, .workers = workers});
  CHECK(loader.size() == 3);
  CHECK(targets(loader) == Batches{{0, 1}, {2, 3}, {4}});
  Loader full_only(Counting(5), {.batch_size = 2, .drop_last = true, .workers = workers});
  CHECK(full_only.size() == 2);
  CHECK(targets(full_only) == Batches{{0, 1}, {2, 3}});
}

TEST_CASE("a loader gives each rank its part", "[data]") {
  auto part = [](std::size_t rank, Uneven uneven) {
    Loader loader(Counting(10), {.batch_size = 2, .uneven = uneven}, {.num_ranks = 4, .rank = rank});
    Batches batches = targets(loader);
    CHECK(batches.size() == loader.size());
    return batches;
  };
  CHECK(part(2, Uneven::pad) == Batches{{2, 6}, {0}});
  CHECK(part(2, Uneven::drop) == Batches{{2, 6}});
  CHECK(part(1, Uneven::keep) == Batches{{1, 5}, {9}});
  CHECK(part(3, Uneven::keep) == Batches{{3, 7}});
}

// Known fault DAT-02: 8 samples, 2 ranks, 3 epochs, PyTorch's orders for seed 0.
TEST_CASE("each loop is the next epoch, and set_epoch goes to any", "[data]") {
  auto const workers = GENERATE(0u, 1u, 3u);
  LoaderOptions const options{.batch_size = 4, .shuffle = true, .workers = workers, .seed = 0};
  Loader first(Counting(8), options, {.num_ranks = 2, .rank = 0});
  Loader second(Counting(8), options, {.num_ranks = 2, .rank = 1});
  std::vector<Batches> const expected{{{4, 7, 2, 1}}, {{5, 2, 7, 1}}, {{0, 7, 6, 1}}};
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    auto const here = targets(first), there = targets(second);
    CHECK(first.epoch() == epoch);
    CHECK(here == expected[epoch]);
    std::set<int> together(here[0].begin(), here[0].end());
    together.insert(there[0].begin(), there[0].end());
    CHECK(together.size() == 8);
  }
  first.set_epoch(1);
  CHECK(first.epoch() == 1);
  CHECK(targets(first) == expected[1]);
  CHECK(targets(first) == expected[2]);
}

TEST_CASE("a loop left by break or by an exception does not harm the next", "[data]") {
  auto const workers = GENERATE(0u, 2u);
  Loader loader(Counting(20), {.batch_size = 2, .workers = workers});
  for (auto& batch : loader) {
    CHECK(batch.target[0].item<int>() == 0);
    break;
  }
  CHECK(targets(loader).size() == 10);
  CHECK(loader.epoch() == 1);

  Counting rotten(20);
  rotten.fails_at = 5;
  Loader failing(rotten, {.batch_size = 2, .workers = workers});
  for (int again = 0; again < 2; ++again)
    CHECK_THROWS_WITH(targets(failing),
                      Catch::Matchers::Equals("weft: rank 0, sample 5 of the dataset: sample 5 is rotten"));
}

TEST_CASE("a loader can be moved", "[data]") {
  Loader loader(Counting(4), {.batch_size = 2});
  CHECK(targets(loader).size() == 2);
  Loader moved = std::move(loader);
  CHECK(targets(moved) == Batches{{0, 1}, {2, 3}});
  CHECK(moved.epoch() == 1);
}

TEST_CASE("datasets that make batches themselves are taken as they are", "[data]") {
  Loader loader(WholeBatches(), {.batch_size = 3});
  std::vector<std::string> notes;
  for (Named& batch : loader) notes.push_back(batch.note + ", first " + std::to_string(batch.indices[0].item<int>()));
  CHECK(notes == std::vector<std::string>{"batch of 3, first 0", "batch of 2, first 3"});

  WholeBatches torn;
  torn.fails = true;
  Loader failing(torn, {.batch_size = 2, .workers = 1});
  CHECK_THROWS_WITH(
      [&] {
        for ([[maybe_unused]] Named& batch : failing) continue;
      }(),
      Catch::Matchers::Equals("weft: rank 0, get_batch of samples 2, 3: no batch from 2"));

  auto stacked = Counting(4).map(torch::data::transforms::Stack<>());
  Loader mapped(std::move(stacked), {.batch_size = 2});
  CHECK(targets(mapped) == Batches{{0, 1}, {2, 3}});

  Loader single(Single(), {.batch_size = 4});
  for (torch::data::TensorExample& batch : single) CHECK(batch.data.sizes() == at::IntArrayRef({4, 3}));
}

TEST_CASE("batches move to the device, whatever they are", "[data]") {
  Loader loader(Counting(4), {.batch_size = 2}, {.device = at::kMeta});
  for (auto& batch : loader) {
    CHECK(batch.data.is_meta());
    CHECK(batch.target.is_meta());
  }
  std::map<std::string, std::vector<at::Tensor>> nested{{"a", {torch::ones({2}), at::Tensor()}}};
  auto const moved = weft::data::move_to(nested, at::kMeta);
  CHECK(moved.at("a")[0].is_meta());
  CHECK(!moved.at("a")[1].defined());
  CHECK(nested.at("a")[0].is_cpu());
}

// torch.utils.data.WeightedRandomSampler(weights, 8, generator=torch.Generator().manual_seed(7 + epoch)), and with 4, replacement=False.
TEST_CASE("samples may be drawn by weight, as PyTorch draws them", "[data]") {
  std::vector<double> const weights{0.1, 0.9, 0.4, 0.7, 3.0, 0.6};
  auto const part = [&](weft::data::Order order, std::size_t rank) {
    Loader loader(Counting(6), {.batch_size = 8, .order = std::move(order), .seed = 7}, {.num_ranks = 2, .rank = rank});
    Batches batches = targets(loader);
    CHECK(loader.size() == 1);
    auto const second = targets(loader);
    batches.insert(batches.end(), second.begin(), second.end());
    return batches;
  };
  CHECK(part(weft::data::weighted(weights, 8), 0) == Batches{{3, 4, 5, 3}, {4, 1, 4, 4}});
  CHECK(part(weft::data::weighted(weights, 8), 1) == Batches{{3, 4, 4, 4}, {4, 2, 3, 0}});
  CHECK(part(weft::data::weighted(weights, 4, /*replacement=*/false), 0) == Batches{{1, 3}, {2, 4}});
  CHECK_THROWS_WITH(part(weft::data::weighted({1, 2}), 0),
                    Catch::Matchers::ContainsSubstring("2 weights for 6 samples"));
}

// Fabric wraps a sampler that draws from each rank's own generator: shards overlap and miss samples as soon as
// generators differ.
TEST_CASE("any order, a torch sampler's too, is dealt to the ranks, whatever they have drawn before", "[data]") {
  auto const seen_with = [](weft::data::Order const& order, std::size_t size) {
    std::vector<std::vector<int>> epochs;
    for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
      auto& seen = epochs.emplace_back();
      for (std::size_t rank = 0; rank < 3; ++rank) {
        torch::manual_seed(rank);
        at::Tensor const expected = torch::rand({2});
        torch::manual_seed(rank);
        Loader loader(Counting(size), {.batch_size = 100, .order = order, .workers = rank},
                      {.num_ranks = 3, .rank = rank});
        loader.set_epoch(epoch);
        for (auto const& batch : targets(loader)) seen.insert(seen.end(), batch.begin(), batch.end());
        CHECK(at::equal(torch::rand({2}), expected));  // and the generator goes on as if nothing had been drawn
      }
    }
    return epochs;
  };
  auto random = seen_with(weft::data::drawn_by(torch::data::samplers::RandomSampler(12)), 12);
  CHECK(random[0] != random[1]);
  std::vector<int> every(12);
  std::iota(every.begin(), every.end(), 0);
  for (auto& epoch : random) {
    std::sort(epoch.begin(), epoch.end());
    CHECK(epoch == every);
  }
  // Backwards, and every second one alone.
  auto const odd = seen_with(
      [](weft::data::Draw const& draw) {
        std::vector<std::size_t> order;
        for (std::size_t i = draw.num_samples; i > 0; i -= 2) order.push_back(i - 1);
        return order;
      },
      12);
  CHECK(odd[0] == std::vector<int>{11, 5, 9, 3, 7, 1});

  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(seen_with([](auto const&) { return std::vector<std::size_t>{0, 12}; }, 12),
                    ContainsSubstring(".order gives sample 12 of a dataset of 12"));
  CHECK_THROWS_WITH(seen_with([](auto const&) { return std::vector<std::size_t>(); }, 12),
                    ContainsSubstring(".order gives no samples in epoch 0"));
  CHECK_THROWS_WITH(Loader(Counting(4), {.shuffle = true, .order = weft::data::random_order}),
                    ContainsSubstring("give one of them"));
}

TEST_CASE("a loader tells its length, and which samples are there twice", "[data]") {
  auto const at_rank = [](std::size_t rank, LoaderOptions options) {
    return Loader(Counting(10), options, {.num_ranks = 4, .rank = rank});
  };
  CHECK(at_rank(0, {.batch_size = 2}).size() == 2);
  CHECK(at_rank(0, {.batch_size = 2}).length() == 2);
  CHECK(at_rank(1, {.batch_size = 2}).repeats() == 0);
  CHECK(at_rank(2, {.batch_size = 2}).repeats() == 1);
  CHECK(at_rank(2, {.batch_size = 2, .drop_last = true}).repeats() == 0);
  CHECK(at_rank(2, {.batch_size = 3, .drop_last = true}).repeats() == 1);
  CHECK(at_rank(2, {.batch_size = 2, .uneven = Uneven::keep}).repeats() == 0);
  CHECK(Loader(Counting(2), {}, {.num_ranks = 8, .rank = 5}).repeats() == 1);
  // A loader keeps its position when it is given its place.
  Loader alone(Counting(10), {.batch_size = 1});
  alone.set_epoch(4);
  CHECK(std::move(alone).placed({.num_ranks = 2, .rank = 0}, 8).epoch() == 4);
}

TEST_CASE("whatever has a size and a subscript is a dataset, and batches are made as one says", "[data]") {
  Loader squares(std::vector<int>{1, 4, 9, 16}, {.batch_size = 3},
                 [](std::vector<int> samples) { return std::accumulate(samples.begin(), samples.end(), 0); });
  std::vector<int> sums;
  for (int sum : squares) sums.push_back(sum);
  CHECK(sums == std::vector<int>{14, 16});

  Loader words(std::vector<std::string>{"a", "b", "c"}, {.batch_size = 2, .workers = 1});
  std::vector<std::vector<std::string>> batches;
  for (auto& batch : words) batches.push_back(batch);
  CHECK(batches == std::vector<std::vector<std::string>>{{"a", "b"}, {"c"}});

  // collate sees what get_batch made, too
  Loader notes(WholeBatches(), {.batch_size = 3}, [](Named batch) { return batch.note; });
  CHECK(*notes.begin() == "batch of 3");
}

TEST_CASE("a large dataset that is read in order needs no table of its samples", "[data]") {
  struct Endlessly {
    std::size_t size() const { return std::size_t{1} << 50; }
    std::int64_t get(std::size_t index) const { return static_cast<std::int64_t>(index); }
  };
  Loader loader(Endlessly(), {.batch_size = 2}, {.num_ranks = 2, .rank = 1});
  CHECK((*loader.begin()).equal(at::tensor({1, 3})));
  loader.load_state({.samples = std::uint64_t{1} << 49, .num_samples = std::uint64_t{1} << 50});
  CHECK((*loader.begin())[0].item<std::int64_t>() == (std::int64_t{1} << 49) + 1);
}

TEST_CASE("what a loader is worth nothing with is refused", "[data]") {
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(Loader(Counting(4), {.batch_size = 0}), ContainsSubstring(".batch_size = 0"));
  CHECK_THROWS_WITH(Loader(Counting(0), {.batch_size = 1}), ContainsSubstring("the dataset is empty"));
  CHECK_THROWS_WITH(Loader(Endless(), {.batch_size = 1}), ContainsSubstring("size() is unknown"));
  CHECK_THROWS_WITH(Loader(Counting(3), {.batch_size = 1, .uneven = Uneven::drop}, {.num_ranks = 4}),
                    ContainsSubstring("3 samples on 4 ranks make no batch of 1"));
  CHECK_THROWS_WITH(Loader(Counting(3), {.batch_size = 4, .drop_last = true}), ContainsSubstring("make no batch of 4"));
  CHECK_THROWS_AS(Loader(Counting(4), {.batch_size = 0}), weft::ConfigurationError);
  CHECK_THROWS_WITH(Loader(Counting(4), {.prefetch = 0}), ContainsSubstring(".prefetch = 0"));
  CHECK_THROWS_WITH(Loader(Counting(4), {}, {.num_ranks = 2, .rank = 2}), ContainsSubstring("rank 2 of 2"));
  STATIC_REQUIRE(!weft::data::AnyDataset<int>);
  STATIC_REQUIRE(weft::data::assert_dataset<Counting>());
}
