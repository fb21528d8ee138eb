#include "test.hpp"

#include <weft/data/sampler.hpp>

#include <numeric>
#include <set>
#include <sstream>

using weft::data::DistributedSampler;
using weft::data::SamplerOptions;
using weft::data::Uneven;

namespace {

using Indices = std::vector<std::size_t>;

Indices all_of(DistributedSampler& sampler, std::size_t batch = 3) {
  Indices all;
  while (auto next = sampler.next(batch)) all.insert(all.end(), next->begin(), next->end());
  return all;
}
std::vector<Indices> by_rank(std::size_t num_samples, SamplerOptions options, std::uint64_t epoch = 0) {
  std::vector<Indices> ranks;
  for (options.rank = 0; options.rank < options.num_ranks; ++options.rank) {
    DistributedSampler sampler(num_samples, options);
    sampler.set_epoch(epoch);
    sampler.reset();
    ranks.push_back(all_of(sampler));
    CHECK(ranks.back().size() == sampler.size());
  }
  return ranks;
}

}  // namespace

// Known fault DAT-01.
TEST_CASE("10 samples on 4 ranks: padded, dropped, or each once", "[data]") {
  auto order = [](Uneven uneven) { return by_rank(10, {.num_ranks = 4, .shuffle = false, .uneven = uneven}); };
  CHECK(order(Uneven::pad) == std::vector<Indices>{{0, 4, 8}, {1, 5, 9}, {2, 6, 0}, {3, 7, 1}});
  CHECK(order(Uneven::drop) == std::vector<Indices>{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  CHECK(order(Uneven::keep) == std::vector<Indices>{{0, 4, 8}, {1, 5, 9}, {2, 6}, {3, 7}});
}

TEST_CASE("fewer samples than ranks", "[data]") {
  auto order = [](std::size_t n, std::size_t ranks, Uneven uneven) {
    return by_rank(n, {.num_ranks = ranks, .shuffle = false, .uneven = uneven});
  };
  CHECK(order(3, 8, Uneven::pad) == std::vector<Indices>{{0}, {1}, {2}, {0}, {1}, {2}, {0}, {1}});
  CHECK(order(1, 4, Uneven::pad) == std::vector<Indices>{{0}, {0}, {0}, {0}});
  CHECK(order(3, 4, Uneven::drop) == std::vector<Indices>{{}, {}, {}, {}});
  CHECK(order(3, 4, Uneven::keep) == std::vector<Indices>{{0}, {1}, {2}, {}});
  CHECK(order(0, 2, Uneven::pad) == std::vector<Indices>{{}, {}});
}

// What PyTorch 2.15 gives, made by
//   s = torch.utils.data.distributed.DistributedSampler(range(n), num_replicas=r, rank=k, shuffle=True, seed=seed,
//   drop_last=drop) s.set_epoch(epoch); list(s)
TEST_CASE("the random order is PyTorch's", "[data]") {
  CHECK(by_rank(8, {.num_ranks = 2, .seed = 0}, 0) == std::vector<Indices>{{4, 7, 2, 1}, {0, 3, 5, 6}});
  CHECK(by_rank(8, {.num_ranks = 2, .seed = 0}, 1) == std::vector<Indices>{{5, 2, 7, 1}, {4, 6, 3, 0}});
  CHECK(by_rank(8, {.num_ranks = 2, .seed = 0}, 2) == std::vector<Indices>{{0, 7, 6, 1}, {4, 2, 5, 3}});
  CHECK(by_rank(10, {.num_ranks = 4, .seed = 7}, 3) ==
        std::vector<Indices>{{7, 3, 2}, {4, 5, 0}, {6, 9, 7}, {1, 8, 4}});
  CHECK(by_rank(10, {.num_ranks = 4, .seed = 7, .uneven = Uneven::drop}, 3) ==
        std::vector<Indices>{{7, 3}, {4, 5}, {6, 9}, {1, 8}});
  CHECK(by_rank(13, {.num_ranks = 3, .seed = 42}, 1) ==
        std::vector<Indices>{{4, 10, 0, 12, 9}, {1, 8, 3, 11, 4}, {7, 2, 5, 6, 1}});
  // torch.randperm(16, generator=torch.Generator().manual_seed(123)).tolist()
  CHECK(weft::data::sample_order(16, true, 120, 3) == Indices{14, 5, 2, 0, 8, 11, 12, 9, 1, 13, 15, 6, 3, 4, 7, 10});
  Indices const many = weft::data::sample_order(100000, true, 5, 0);
  CHECK(Indices(many.begin(), many.begin() + 4) == Indices{53411, 99184, 41565, 33006});
  CHECK(Indices(many.end() - 4, many.end()) == Indices{2466, 82440, 5805, 57622});
}

TEST_CASE("the random order leaves the global generator alone", "[data]") {
  torch::manual_seed(1);
  at::Tensor const expected = torch::rand({3});
  torch::manual_seed(1);
  DistributedSampler sampler(100);
  sampler.reset();
  CHECK(at::equal(torch::rand({3}), expected));
}

TEST_CASE("ranks together see every sample", "[data]") {
  auto const num_ranks = GENERATE(1, 2, 3, 4);
  auto const num_samples = GENERATE(1, 7, 12, 13);
  auto const uneven = GENERATE(Uneven::pad, Uneven::keep);
  std::multiset<std::size_t> seen;
  for (auto const& rank :
       by_rank(num_samples, {.num_ranks = static_cast<std::size_t>(num_ranks), .seed = 3, .uneven = uneven}))
    seen.insert(rank.begin(), rank.end());
  std::set<std::size_t> const distinct(seen.begin(), seen.end());
  CHECK(distinct.size() == static_cast<std::size_t>(num_samples));
  if (uneven == Uneven::keep) CHECK(seen.size() == static_cast<std::size_t>(num_samples));
}

TEST_CASE("a copy sees the epoch that is set on the original, from its next reset on", "[data]") {
  DistributedSampler sampler(8, {.num_ranks = 2});
  DistributedSampler copy = sampler;
  copy.reset();
  CHECK(all_of(copy) == Indices{4, 7, 2, 1});
  sampler.set_epoch(1);
  CHECK(copy.next(1) == std::nullopt);
  copy.reset();
  CHECK(all_of(copy) == Indices{5, 2, 7, 1});
}

TEST_CASE("a saved sampler goes on where it was", "[data]") {
  DistributedSampler sampler(13, {.num_ranks = 3, .rank = 1, .seed = 42});
  sampler.set_epoch(1);
  sampler.reset();
  CHECK(sampler.next(2) == Indices{1, 8});
  std::stringstream archive;
  torch::serialize::OutputArchive out;
  sampler.save(out);
  out.save_to(archive);

  auto resume = [&](DistributedSampler& other) {
    archive.clear();
    archive.seekg(0);
    torch::serialize::InputArchive in;
    in.load_from(archive);
    other.load(in);
  };
  DistributedSampler other(13, {.num_ranks = 3, .rank = 1, .seed = 42});
  resume(other);
  CHECK(other.epoch() == 1);
  CHECK(other.position() == 2);
  CHECK(all_of(other) == Indices{3, 11, 4});

  DistributedSampler shrunk(12, {.num_ranks = 3, .rank = 1, .seed = 42});
  CHECK_THROWS_WITH(resume(shrunk), Catch::Matchers::ContainsSubstring("had 13 samples, this one has 12"));
  DistributedSampler more_ranks(13, {.num_ranks = 13, .rank = 1, .seed = 42});
  CHECK_THROWS_AS(resume(more_ranks), weft::CheckpointError);
}

TEST_CASE("impossible ranks are refused", "[data]") {
  CHECK_THROWS_AS(DistributedSampler(8, {.num_ranks = 0}), weft::ConfigurationError);
  CHECK_THROWS_WITH(DistributedSampler(8, {.num_ranks = 2, .rank = 2}),
                    Catch::Matchers::ContainsSubstring(".rank = 2 of .num_ranks = 2"));
}
