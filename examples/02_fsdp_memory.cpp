// 02_fsdp_memory.cpp -- what each sharding of a Transformer with a billion parameters holds, before anything runs.
//
// The first table is arithmetic that the compiler does; not a single weight is made. The second holds it against a dry
// run: one rank of eight trains a smaller model here, the others are simulated, and the allocator counts. With --whole
// [sharding] it is the model of a billion parameters itself: minutes, and up to 16 GB for NoShard.
//
// run:
// expect: 1008.8 million parameters
// expect: | FullShard | 8 | 0.47 | 0.47 | 0.94 |
// expect: | NoShard | 64 | 3.76 | 3.76 | 7.52 | 0.00 | 0.00 | 15.03 |
// expect: the dry runs agree with the estimates to the byte
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <weft/estimates/shape_of.hpp>
#include <weft/launch/simulated.hpp>
#include <weft/nn/layers.hpp>
#include <weft/report/allocator.hpp>
#include <weft/weft.hpp>

#include "transformer.hpp"

using namespace weft::literals;
using weft::report::MemoryTag;

using Layers = weft::WrapPolicy<weft::nn::TransformerEncoderLayer, weft::nn::TransformerDecoderLayer>;
using Nodes = weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", weft::Infer>>;
using FullShard = weft::FSDP<weft::FullShard, Layers>;
using ShardGradOp = weft::FSDP<weft::ShardGradOp, Layers>;
using HybridShard = weft::FSDP<weft::HybridShard, Layers, Nodes>;
using NoShard = weft::FSDP<weft::NoShard, Layers>;

constexpr std::size_t adam = 2;  // states
constexpr transformer::Sizes billion{};

static_assert(weft::estimate<FullShard>(transformer::shape(billion, adam), 64).peak_bytes < 2_GiB,
              "fits beside the activations");

template <class Strategy>
void print_estimates() {
  for (int const ranks : {2, 8, 64}) {
    auto const held = weft::estimate<Strategy>(transformer::shape(billion, adam), ranks);
    auto const gib = [](std::size_t bytes) { return static_cast<double>(bytes) / static_cast<double>(1_GiB); };
    std::printf("| %s | %d | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n",
                std::string(Strategy::sharding::name).c_str(), ranks, gib(held.parameter_bytes),
                gib(held.gradient_bytes), gib(held.optimizer_bytes), gib(held.gathered_peak_bytes),
                gib(held.reduce_peak_bytes), gib(held.peak_bytes));
  }
}

/// Three steps of one rank of eight; the peaks of the tags beside the estimate's.
template <class Strategy>
bool dry_run(transformer::Sizes const& sizes, std::string_view only) {
  if (!only.empty() && only != Strategy::sharding::name) return true;
  constexpr int num_ranks = 8;
  using Run = weft::Fabric<Strategy, weft::On<weft::Cpu>, weft::Simulated<num_ranks>>;
  auto const expected = weft::estimate<Run>(transformer::shape(sizes, adam), num_ranks);
  auto outcome = Run::launch({.devices = num_ranks}, [&](Run& fabric) {
    weft::report::MemoryCount const memory;
    auto [model, optimizer] = fabric.setup(transformer::Model(sizes), weft::AdamW{.lr = 1e-4});
    memory.reset_peaks();
    for (int step = 0; step < 3; ++step) {
      auto const words = at::randint(sizes.vocabulary, {2, 1}, at::kLong);
      fabric.backward(model(words, words).mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    bool agree = true;
    for (auto const& [tag, estimate] : {std::pair{MemoryTag::parameters, expected.parameter_bytes},
                                        {MemoryTag::gradients, expected.gradient_bytes},
                                        {MemoryTag::optimizer, expected.optimizer_bytes},
                                        {MemoryTag::gathered, expected.gathered_peak_bytes},
                                        {MemoryTag::reduce, expected.reduce_peak_bytes}}) {
      auto const counted = memory.of(tag).peak_bytes;
      std::printf("| %s | %s | %zu | %zu |\n", std::string(Strategy::sharding::name).c_str(),
                  std::string(name_of(tag)).c_str(), estimate, counted);
      agree = agree && counted == estimate;
    }
    return agree;
  });
  return outcome.value();
}

int main(int argc, char** argv) {
  int64_t parameters = 0;
  for (auto const& unit : transformer::shape(billion, adam).units)
    for (auto const& parameter : unit.parameters) parameters += parameter.numel;
  std::printf("%.1f million parameters, fp32, AdamW; GiB on each rank, activations aside\n\n",
              static_cast<double>(parameters) / 1e6);
  std::printf(
      "| sharding | ranks | parameters | gradients | optimizer | gathered | reducing | at most "
      "|\n|---|---|---|---|---|---|---|---|\n");
  print_estimates<FullShard>();
  print_estimates<ShardGradOp>();
  print_estimates<HybridShard>();
  print_estimates<NoShard>();

  bool const whole = argc > 1 && std::string_view(argv[1]) == "--whole";
  auto const sizes = whole ? billion
                           : transformer::Sizes{
                                 .layers = 6, .width = 256, .feed_forward = 1024, .heads = 8, .vocabulary = 3001};
  std::printf(
      "\n%d + %d layers of width %d on one simulated rank of 8, in bytes\n\n| sharding | memory for | estimate | dry "
      "run |\n|---|---|---|---|\n",
      static_cast<int>(sizes.layers), static_cast<int>(sizes.layers), static_cast<int>(sizes.width));
  std::string_view const only = argc > 2 ? argv[2] : "";
  bool agree = true;
  for (auto* const run : {&dry_run<FullShard>, &dry_run<ShardGradOp>, &dry_run<HybridShard>, &dry_run<NoShard>})
    agree = run(sizes, only) && agree;
  std::printf("\nthe dry runs %s\n", agree ? "agree with the estimates to the byte" : "differ from the estimates");
  return agree ? 0 : 1;
}
