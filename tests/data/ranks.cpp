#include "ranks.hpp"

#include <weft/data/words.hpp>

#include <filesystem>
#include <numeric>
#include <set>

using test::on_ranks;
using test::Run;
using weft::data::Loader;
using weft::data::Uneven;

namespace {

std::vector<std::int64_t> numbers(std::int64_t size) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(size));
  std::iota(samples.begin(), samples.end(), 0);
  return samples;
}
struct Counter {
  std::int64_t size;
  std::int64_t at = 0;
  std::optional<std::int64_t> next() { return at < size ? std::optional(at++) : std::nullopt; }
};

template <class Loaded>
at::Tensor all_of(Loaded& loader) {
  std::vector<at::Tensor> batches;
  for (auto& batch : loader) batches.push_back(batch);
  return at::cat(batches);
}
// All ranks' samples, in rising order.
at::Tensor sorted(std::vector<at::Tensor> const& of_ranks) { return std::get<0>(at::cat(of_ranks).sort()); }

}  // namespace

TEST_CASE("several loaders at once: each rank has its own samples of each, by the fabric's seed", "[data]") {
  auto const world = GENERATE(1, 2, 3);
  auto const [shuffled, streamed, seen_twice] = on_ranks(world, [](Run<>& fabric) {
    fabric.seed_everything(11);
    auto [training, validation, stream] = fabric.setup_dataloaders(
        Loader(numbers(24), {.batch_size = 2, .shuffle = true, .workers = 2}),
        Loader(numbers(7), {.batch_size = 2, .uneven = Uneven::keep}),
        Loader(Counter{12}, {.batch_size = 3, .workers = 1}));
    CHECK(training.options().seed == 11);
    auto const of_validation = all_of(validation);
    auto const epochs = at::stack({all_of(training), all_of(training)});
    auto const all_validation = fabric.all_gather_uneven(of_validation);
    return std::tuple(fabric.all_gather(epochs), fabric.all_gather(all_of(stream)), sorted(all_validation));
  });
  CHECK(seen_twice.equal(at::arange(7)));
  for (int epoch = 0; epoch < 2; ++epoch)
    CHECK(std::get<0>(shuffled.select(1, epoch).flatten().sort()).equal(at::arange(24)));
  CHECK_FALSE(shuffled.select(1, 0).equal(shuffled.select(1, 1)));
  // PyTorch's order of seed 11 on so many ranks
  auto const order = weft::data::sample_order(24, true, 11, 0);
  for (int rank = 0; rank < world; ++rank)
    for (int i = 0; i < 24 / world; ++i)
      CHECK(shuffled[rank][0][i].item<std::int64_t>() ==
            static_cast<std::int64_t>(order[static_cast<std::size_t>(rank + i * world)]));
  CHECK(std::get<0>(streamed.flatten().sort()).equal(at::arange(12)));
}

TEST_CASE("a job of two ranks goes on with three in the middle of an epoch", "[data]") {
  auto const [first, text] = on_ranks(2, [](Run<>& fabric) {
    fabric.seed_everything(3);
    auto loader = fabric.setup_dataloader(numbers(30), {.batch_size = 3, .shuffle = true, .workers = 1});
    all_of(loader);
    std::vector<at::Tensor> seen;
    for (auto& batch : loader) {
      seen.push_back(batch);
      if (seen.size() == 2) break;
    }
    return std::pair(fabric.all_gather(at::cat(seen)), loader.state().to_text());
  });
  CHECK(text == "weft loader 1: epoch 1, 12 of 30 samples, seed 3, 2 ranks, shuffled");
  auto const second = on_ranks(3, [state = weft::data::LoaderState::from_text(text)](Run<>& fabric) {
    auto loader = fabric.setup_dataloader(numbers(30), {.batch_size = 3, .shuffle = true});
    loader.load_state(state);
    return fabric.all_gather(all_of(loader));
  });
  CHECK(sorted({first.flatten(), second.flatten()}).equal(at::arange(30)));
}

TEST_CASE("all ranks build one vocabulary of one text", "[data]") {
  auto const path =
      (std::filesystem::temp_directory_path() / ("weft-ranks-" + std::to_string(::getpid()) + ".txt")).string();
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "w" + std::to_string(i * i % 331) + (i % 7 ? " " : ".\n");
  std::ofstream(path, std::ios::binary) << text;
  auto const texts = on_ranks(3, [&](Run<>& fabric) {
    auto const vocabulary = weft::data::Vocabulary::of(weft::data::Text::map(path), {.most = 50});
    std::vector<std::string> all;
    for (int rank = 0; rank < 3; ++rank) all.push_back(fabric.broadcast(vocabulary.to_text(), rank));
    return all;
  });
  std::filesystem::remove(path);
  CHECK(texts[1] == texts[0]);
  CHECK(texts[2] == texts[0]);
  CHECK(weft::data::Vocabulary::from_text(texts[0]).size() == 51);
}

TEST_CASE("a worker's error ends the job with rank and sample", "[data]") {
  struct Rotten {
    std::size_t size() const { return 8; }
    std::int64_t get(std::size_t index) const {
      if (index == 5) throw std::runtime_error("rotten");
      return static_cast<std::int64_t>(index);
    }
  };
  CHECK(test::contains(test::failure_on_ranks(2,
                                              [](Run<>& fabric) {
                                                auto loader = fabric.setup_dataloader(Rotten(),
                                                                                      {.batch_size = 2, .workers = 2});
                                                for (auto& batch : loader)
                                                  fabric.all_reduce(batch, weft::ReduceOp::sum);
                                              }),
                       "weft: rank 1, sample 5 of the dataset: rotten"));
}

TEST_CASE("a loader is set up once", "[data]") {
  test::on_ranks(2, [](Run<>& fabric) {
    auto loader = fabric.setup_dataloader(numbers(4));
    bool refused = false;
    try {
      static_cast<void>(fabric.setup_dataloader(std::move(loader)));
    } catch (weft::ConfigurationError const& error) {
      refused = test::contains(error.what(), "already; pass it once");
    }
    return refused ? 1 : throw std::runtime_error("not refused");
  });
}

TEST_CASE("a transport that a loader was given before there were ranks stays its own", "[data]") {
  struct Mine final : weft::data::Transport {
    at::Tensor pin(at::Tensor const& tensor) override { return tensor; }
    std::unique_ptr<Flight> depart(std::vector<at::Tensor*> const&) override {
      struct Arrived final : Flight {
        void arrive() override {}
      };
      return std::make_unique<Arrived>();
    }
  };
  CHECK(on_ranks(2, [](Run<>& fabric) {
    auto const transport = std::make_shared<Mine>();
    auto const loader = fabric.setup_dataloader(Loader(numbers(4), {.batch_size = 2}, {.transport = transport}));
    return loader.place().transport == transport && loader.place().num_ranks == 2;
  }));
}
