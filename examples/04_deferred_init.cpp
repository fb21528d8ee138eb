// 04_deferred_init.cpp -- a model that no process has room for, built and sharded.
//
// init_module builds it without memory. setup draws one parameter after another, keeps this rank's part, and lets the
// rest go. The weights are those of a program that builds the whole model first, bit for bit, which --eager does; the
// allocator counts both. One rank of eight runs here, the others are simulated. With --whole it is the Transformer of a
// billion parameters. (What is kept beside the shards is LibTorch's way: a Transformer's options keep the layer that
// its layers are clones of.)
//
// run:
// expect: built: 0.0 of 48.1 MiB
// expect: deferred: not more than what is kept and the largest parameter
// expect: deferred: and the bits of eager construction
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/launch/simulated.hpp>
#include <weft/nn/layers.hpp>
#include <weft/report/allocator.hpp>
#include <weft/weft.hpp>

#include "transformer.hpp"

using Layers = weft::WrapPolicy<weft::nn::TransformerEncoderLayer, weft::nn::TransformerDecoderLayer>;
using Run = weft::Fabric<weft::FSDP<weft::FullShard, Layers>, weft::On<weft::Cpu>, weft::Simulated<8>>;

double mib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

struct Built {
  std::size_t module_bytes = 0, peak_bytes = 0, kept_bytes = 0, shard_bytes = 0, largest_bytes = 0, whole_bytes = 0;
  double seconds = 0;
  std::vector<at::Tensor> shards{};
};

Built build(Run& fabric, transformer::Sizes const& sizes, bool deferred) {
  fabric.seed_everything(7);
  Built built;
  weft::report::MemoryCount const memory;
  auto const start = std::chrono::steady_clock::now();
  auto module = fabric.init_module<transformer::Model>(weft::Init{.deferred = deferred}, sizes);
  built.module_bytes = memory.all().bytes;
  auto const model = fabric.setup(std::move(module));
  built.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  built.peak_bytes = memory.all().peak_bytes;
  built.kept_bytes = memory.all().bytes;
  built.shard_bytes = memory.of(weft::report::MemoryTag::parameters).bytes;
  for (auto const& row : model.table().rows()) {
    auto const bytes = static_cast<std::size_t>(row.global_numel()) * sizeof(float);
    built.largest_bytes = std::max(built.largest_bytes, bytes);
    built.whole_bytes += bytes;
    built.shards.push_back(row.tensor.detach());
  }
  return built;
}

int main(int argc, char** argv) {
  bool whole = false, only_eager = false, only_deferred = false;
  for (int i = 1; i < argc; ++i) {
    whole = whole || std::string_view(argv[i]) == "--whole";
    only_eager = only_eager || std::string_view(argv[i]) == "--eager";
    only_deferred = only_deferred || std::string_view(argv[i]) == "--deferred";
  }
  auto const sizes = whole ? transformer::Sizes{}
                           : transformer::Sizes{
                                 .layers = 6, .width = 256, .feed_forward = 1024, .heads = 8, .vocabulary = 3001};
  auto outcome = Run::launch({.devices = 8}, [&](Run& fabric) {
    std::optional<Built> deferred, eager;
    if (!only_eager) deferred = build(fabric, sizes, true);
    if (!only_deferred) eager = build(fabric, sizes, false);
    for (auto const& [name, built] : {std::pair("deferred", &deferred), {"eager", &eager}})
      if (*built)
        std::printf("%-8s  built: %.1f of %.1f MiB; setup: %.1f MiB at most, %.1f kept, %.1f of shards; %.2f s\n", name,
                    mib((*built)->module_bytes), mib((*built)->whole_bytes), mib((*built)->peak_bytes),
                    mib((*built)->kept_bytes), mib((*built)->shard_bytes), (*built)->seconds);
    bool good = true;
    if (deferred) {
      auto const small = std::size_t{64} << 10;  // the generator's states
      bool const fits = deferred->peak_bytes <= deferred->kept_bytes + deferred->largest_bytes + small;
      std::printf("deferred: %s than what is kept and the largest parameter\n", fits ? "not more" : "more");
      good = good && fits;
    }
    if (deferred && eager) {
      bool equal = true;
      for (std::size_t i = 0; i < eager->shards.size(); ++i)
        equal = equal && at::equal(deferred->shards[i], eager->shards[i]);
      std::printf("deferred: %s of eager construction\n", equal ? "and the bits" : "but not the bits");
      good = good && equal;
    }
    return good;
  });
  return outcome.value() ? 0 : 1;
}
