#include "models.hpp"

#include <weft/report/allocator.hpp>

namespace visit_test {  // tests are compiled several in one file

using namespace test;
using weft::FSDP, weft::FullShard, weft::ShardGradOp, weft::NoShard, weft::HybridShard, weft::WrapPolicy;
using weft::model::Visit;
using weft::report::MemoryTag;

/// Walks over a model that has just been through a forward, which has left what it may keep for a backward; writes
/// twice of what was there, and trains on.
template <class Strategy, class... Rest>
void check(int world) {
  using Program = weft::Fabric<Strategy, weft::On<weft::Cpu>, Rest...>;
  INFO(weft::name_of<Program>() << ", world " << world);
  auto outcome = Program::launch({.devices = world}, [](Program& fabric) {
    fabric.seed_everything(3);
    Stack const reference;
    fabric.seed_everything(3);
    auto [model, optimizer] = fabric.setup(Stack(), weft::SGD{.lr = 0.1});
    auto const want = reference->parameters();
    auto const& table = model.table();
    auto& engine = *model.state()->engine;
    weft::model::Engine::Rows rows(table.size());
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = i;
    bool const is_first = fabric.global_rank() == 0;
    std::size_t unsharded_bytes = 0, largest = 0;
    for (auto const& parameter : want) unsharded_bytes += parameter.nbytes();

    auto const walk = [&](Visit what, double factor) {
      weft::report::MemoryCount const memory;
      fabric.recorder().start();
      std::vector<std::size_t> seen;
      at::NoGradGuard const no_grad;
      engine.visit_unsharded(rows, what, [&](auto const& some) {
        for (auto const row : some) {
          auto const& tensor = table.rows()[row].tensor;
          expect(at::equal(tensor, want[row] * factor), table.rows()[row].name + " as one process has it");
          if (what == Visit::write) tensor.mul_(2);
          seen.push_back(row);
        }
      });
      std::sort(seen.begin(), seen.end());
      largest = std::max(largest, memory.of(MemoryTag::gathered).peak_bytes);
      if (what == Visit::read_on_first && !is_first) {
        expect(seen.empty(), "nothing is seen past the first rank");
        expect(memory.of(MemoryTag::gathered).peak_bytes == 0, "nothing is unsharded past the first rank");
      } else {
        expect(seen == rows, "each row is seen once");
      }
      for (auto const& event : fabric.recorder().stop())
        expect(event.kind == (what == Visit::read_on_first ? weft::comm::Kind::gather : weft::comm::Kind::all_gather),
               std::string("a walk sends no ") + name_of(event.kind));
    };
    auto const loss = model(at::ones({2, 5})).sum();
    walk(Visit::read_on_first, 1);
    walk(Visit::read, 1);
    walk(Visit::write, 1);
    walk(Visit::read_on_first, 2);
    if (table.rows().size() > 0 && fabric.world_size() > 1 && fabric.config().sharding.shard_parameters)
      expect(largest < unsharded_bytes, "never the whole model at once");
    fabric.backward(model(at::ones({2, 5})).sum());
    optimizer.step();
    return static_cast<int>(rows.size());
  });
  if (!outcome) FAIL(outcome.failures().front().message);
  CHECK(*outcome > 0);
}

TEST_CASE("a walk over unsharded parameters comes to the first rank alone, to all, or stays written", "[shard]") {
  using Blocks = WrapPolicy<Block>;
  for (int const world : {1, 2, 3}) {
    check<FSDP<FullShard, Blocks, weft::Bucket<1>>>(world);
    check<FSDP<ShardGradOp, Blocks>>(world);
    check<FSDP<NoShard, Blocks>>(world);
    check<FSDP<FullShard, Blocks, weft::Bucket<1>>, weft::Bf16Mixed>(world);
  }
  check<FSDP<HybridShard, Blocks, weft::Bucket<1>, weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", 2>>>>(4);
}

}  // namespace visit_test
