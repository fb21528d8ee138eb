#include "models.hpp"

#include <weft/estimates/estimate.hpp>
#include <weft/estimates/shape_of.hpp>
#include <weft/launch/simulated.hpp>
#include <weft/report/allocator.hpp>

using namespace test;
using weft::Simulated;

namespace {

template <class Strategy, std::size_t World>
using Alone = weft::Fabric<Strategy, weft::On<weft::Cpu>, Simulated<World>>;
template <class Sharding>
using Sharded = weft::FSDP<Sharding, weft::WrapPolicy<Block>, weft::Bucket<1>>;
template <class Sharding>
using InGroups = weft::FSDP<Sharding, weft::WrapPolicy<Block>,
                            weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", weft::Infer>>>;

struct Seen {
  std::vector<std::string> events;
  std::vector<int64_t> peaks;  // by tag, but for what a backend receives: a simulated one receives nothing
};

/// Setting up and three steps.
template <class AnyFabric>
Seen look(AnyFabric& fabric) {
  fabric.seed_everything(1);
  Stack stack(4);
  weft::report::MemoryCount const memory;
  fabric.recorder().start();
  auto [model, optimizer] = fabric.setup(stack, weft::AdamW{.lr = 1e-2});
  for (int step = 0; step < 3; ++step) {
    fabric.backward(model(torch::ones({2, 5})).sum());
    fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0});
    optimizer.step();
    optimizer.zero_grad();
  }
  Seen seen;
  for (auto const& event : fabric.recorder().stop())
    seen.events.push_back(event.phase + " " + name_of(event.kind) + "@" + std::to_string(event.group_size) + " " +
                          std::to_string(event.bytes));
  for (auto const tag : {weft::report::MemoryTag::parameters, weft::report::MemoryTag::gathered,
                         weft::report::MemoryTag::gradients, weft::report::MemoryTag::optimizer})
    seen.peaks.push_back(static_cast<int64_t>(memory.of(tag).peak_bytes));
  return seen;
}

template <class Strategy, std::size_t World>
Seen simulated(int rank) {
  auto outcome = Alone<Strategy, World>::launch({.simulated_rank = rank},
                                                [](Alone<Strategy, World>& fabric) { return look(fabric); });
  if (!outcome) FAIL(outcome.failures().front().message);
  return std::move(*outcome);
}

template <class Strategy>
void compare() {
  auto const real = on_ranks<Strategy>(4, [](Run<Strategy>& fabric) {
    auto const seen = look(fabric);
    std::vector<std::pair<std::vector<std::string>, std::vector<int64_t>>> all;
    for (int rank = 0; rank < 4; ++rank) all.push_back(fabric.broadcast(std::pair(seen.events, seen.peaks), rank));
    return all;
  });
  for (int rank : {0, 1, 3}) {
    INFO("rank " << rank);
    auto const seen = simulated<Strategy, 4>(rank);
    CHECK(seen.events == real[static_cast<std::size_t>(rank)].first);
    CHECK(seen.peaks == real[static_cast<std::size_t>(rank)].second);
  }
}

}  // namespace

TEST_CASE("a simulated rank of a sharded job has the events and the memory of a real one", "[shard][simulated]") {
  SECTION("full shard") { compare<Sharded<weft::FullShard>>(); }
  SECTION("shard-grad-op") { compare<Sharded<weft::ShardGradOp>>(); }
  SECTION("hybrid") { compare<InGroups<weft::HybridShard>>(); }
}

TEST_CASE("a rank of 1024, and of 4096, is simulated in this process: its shards are the estimate's",
          "[shard][simulated]") {
  auto const check = [](Seen const& seen, weft::Estimate const& estimate) {
    CHECK(seen.peaks[0] == static_cast<int64_t>(estimate.parameter_bytes));
    CHECK(seen.peaks[1] == static_cast<int64_t>(estimate.gathered_peak_bytes));
    CHECK(seen.peaks[3] == static_cast<int64_t>(estimate.optimizer_bytes));
    auto const gathers = std::count_if(seen.events.begin(), seen.events.end(), [](std::string const& event) {
      return event.find("ward all_gather") != event.npos;
    });
    CHECK(gathers == 3 * static_cast<std::ptrdiff_t>(estimate.all_gather.count));
  };
  using Full = Sharded<weft::FullShard>;
  // A chunk is one element: ranks past the model's end hold padding.
  auto shape = weft::shape_of<Full>(*Stack(4));
  shape.optimizer_states = 2;
  check(simulated<Full, 1024>(65), weft::estimate<Full>(shape, 1024));
  check(simulated<Full, 4096>(7), weft::estimate<Full>(shape, 4096));
}
