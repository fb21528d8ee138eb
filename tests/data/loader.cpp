#include "test.hpp"

#include <weft/data/loader.hpp>

#include <map>
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
  Named get_batch(torch::ArrayRef<std::size_t> indices) override {
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
  for (int again = 0; again < 2; ++again) CHECK_THROWS_WITH(targets(failing), Catch::Matchers::Equals("weft: rank 0, sample 5 of the dataset: sample 5 is rotten"));
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

TEST_CASE("what a loader is worth nothing with is refused", "[data]") {
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(Loader(Counting(4), {.batch_size = 0}), ContainsSubstring(".batch_size = 0"));
  CHECK_THROWS_WITH(Loader(Counting(0), {.batch_size = 1}), ContainsSubstring("the dataset is empty"));
  CHECK_THROWS_WITH(Loader(Endless(), {.batch_size = 1}), ContainsSubstring("size() is unknown"));
  CHECK_THROWS_WITH(Loader(Counting(3), {.batch_size = 1, .uneven = Uneven::drop}, {.num_ranks = 4}), ContainsSubstring("3 samples on 4 ranks make no batch of 1"));
  CHECK_THROWS_WITH(Loader(Counting(3), {.batch_size = 4, .drop_last = true}), ContainsSubstring("make no batch of 4"));
  CHECK_THROWS_AS(Loader(Counting(4), {.batch_size = 0}), weft::ConfigurationError);
  STATIC_REQUIRE(!weft::data::AnyDataset<int>);
  STATIC_REQUIRE(weft::data::assert_dataset<Counting>());
}
