#include "models.hpp"

#include <weft/report/allocator.hpp>
#include <weft/shard/estimate.hpp>
#include <weft/shard/shape_of.hpp>

using namespace test;
using weft::Simulated;

namespace {

template <class Strategy, std::size_t World>
using Alone = weft::Fabric<Strategy, weft::On<weft::Cpu>, Simulated<World>>;
template <class Sharding>
using Sharded = weft::FSDP<Sharding, weft::WrapPolicy<Block>, weft::Bucket<1>>;
template <class Sharding>
using InGroups = weft::FSDP<Sharding, weft::WrapPolicy<Block>, weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", weft::Infer>>>;

struct Seen {
  std::vector<std::string> events;
  std::vector<int64_t> peaks;  // by tag; not of the rest, which holds whatever the process did before
};

/// Setting up and three steps.
template <class AnyFabric>
Seen look(AnyFabric& fabric) {
  fabric.seed_everything(1);
  Stack stack(4);
  weft::report::MemoryCount memory;
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
    seen.events.push_back(event.phase + " " + name_of(event.kind) + "@" + std::to_string(event.group_size) + " " + std::to_string(event.bytes));
  using enum weft::core::MemoryTag;
  for (auto const tag : {parameters, gathered, gradients, optimizer_tag()}) seen.peaks.push_back(static_cast<int64_t>(memory.of(tag).peak_bytes));
  return seen;
}

}  // namespace
