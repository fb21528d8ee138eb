#include <catch2/catch_all.hpp>

#include <fstream>
#include <string>

#include <nlohmann/json.hpp>
#include <weft/estimates/estimate.hpp>

using namespace weft;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using Sum = comm::Sum;
using estimates::Spread;

namespace {

struct Block {};
using Wrap = WrapPolicy<Block>;
template <int Replicate, int Shard>
using Hybrid = Mesh<Axis<"replicate", Replicate>, Axis<"shard", Shard>>;
template <class Sharding, class... Options>
using OneByOne = FSDP<Sharding, Wrap, Bucket<1>, Options...>;  // each unit is a bucket

// Trained + frozen, and what three ranks make of them: the root 10 + 3, padded 12 + 3; one block 7, padded 9; one 5 +
// 4, padded 6 + 6.
constexpr ModelShape small() {
  return {.element_bytes = 4,
          .units = {{.parameters = {{6}, {3, false}, {4}}},
                    {.parent = 0, .parameters = {{7}}},
                    {.parent = 0, .parameters = {{4, false}, {5}}}},
          .optimizer_states = 2};
}

// root { a { x, y }, b }
constexpr ModelShape nested() {
  return {.element_bytes = 1,
          .units = {{.parameters = {{10}}},
                    {.parent = 0, .parameters = {{100}}},
                    {.parent = 1, .parameters = {{50}}},
                    {.parent = 1, .parameters = {{60}}},
                    {.parent = 0, .parameters = {{20}}}}};
}

// The peers' Llama-like shapes, in fp32 with SGD; each block is a unit.
constexpr ModelShape llama(int64_t vocab, int64_t dim, int layers, int64_t hidden) {
  ModelShape shape{.units = {{.parameters = {{vocab * dim}, {dim}, {vocab * dim}}}}};
  for (int i = 0; i < layers; ++i)
    shape.units.push_back({.parent = 0,
                           .parameters = {{dim},
                                          {dim * dim},
                                          {dim * dim},
                                          {dim * dim},
                                          {dim * dim},
                                          {dim},
                                          {hidden * dim},
                                          {dim * hidden},
                                          {hidden * dim}}});
  return shape;
}
constexpr ModelShape tiny() { return llama(128, 64, 2, 128); }
constexpr ModelShape odd() { return llama(101, 60, 3, 90); }

struct MyOwn {
  static constexpr ShardConfig config{.reshard_after_forward = false};
};

// A user's line in a program.
static_assert(estimate<FSDP<FullShard, Wrap>>(tiny(), 8).peak_bytes < 2_MiB);
static_assert(estimate<SingleDevice>(tiny()).peak_bytes == 2 * 98624 * 4);

}  // namespace

TEST_CASE("an estimate of FullShard, by hand", "[shard]") {
  constexpr auto found = estimate<OneByOne<FullShard>>(small(), 3);
  STATIC_REQUIRE(found.parameter_bytes == 4 * (4 + 1 + 3 + 2 + 2));
  STATIC_REQUIRE(found.gradient_bytes == 4 * (4 + 3 + 2));
  STATIC_REQUIRE(found.optimizer_bytes == 2 * 4 * (4 + 3 + 2));
  STATIC_REQUIRE(found.gathered_peak_bytes == 4 * (15 + 9 + 12));
  // The root's gradients, and the first block's while they are copied into one piece.
  STATIC_REQUIRE(found.reduce_peak_bytes == 4 * (10 + 7 + 9));
  STATIC_REQUIRE(found.peak_bytes == 48 + 36 + 72 + 144 + 104);
  STATIC_REQUIRE(found.largest_unit_bytes == 4 * 13);
  // Forward gathers 12, 3, 9, 6, 6 elements, backward all but the root's 12 and 3.
  STATIC_REQUIRE(found.all_gather == Sum{8, 4 * (36 + 21), 4 * (36 + 21) * 2 / 3});
  STATIC_REQUIRE(found.reduce_scatter == Sum{3, 4 * 27, 4 * 27 * 2 / 3});
  STATIC_REQUIRE(found.all_reduce == Sum{});
  STATIC_REQUIRE(found.sent_bytes == 152 + 72);
  CHECK(estimate<OneByOne<FullShard>>(small(), 3) == found);
}

TEST_CASE("units in one bucket travel together", "[shard]") {
  constexpr auto found = estimate<FSDP<FullShard, Wrap>>(small(), 3);
  // The blocks: 12 trained elements, no padding, and 4 frozen ones, padded to 6.
  STATIC_REQUIRE(found.all_gather == Sum{6, 4 * (12 + 3 + 12 + 6 + 12 + 6), 4 * 51 * 2 / 3});
  STATIC_REQUIRE(found.reduce_scatter == Sum{2, 4 * 24, 4 * 24 * 2 / 3});
  STATIC_REQUIRE(found.gathered_peak_bytes == 4 * (15 + 18));
  STATIC_REQUIRE(found.parameter_bytes == 4 * (4 + 1 + 4 + 2));
}

TEST_CASE("ShardGradOp gathers once and keeps all", "[shard]") {
  constexpr auto found = estimate<OneByOne<ShardGradOp>>(small(), 3);
  STATIC_REQUIRE(found.all_gather == Sum{5, 4 * 36, 4 * 36 * 2 / 3});
  STATIC_REQUIRE(found.reduce_scatter == estimate<OneByOne<FullShard>>(small(), 3).reduce_scatter);
  STATIC_REQUIRE(found.gathered_peak_bytes == 4 * 36);
  STATIC_REQUIRE(found.parameter_bytes == 48);
}

TEST_CASE("NoShard keeps everything and all-reduces", "[shard]") {
  constexpr auto found = estimate<OneByOne<NoShard>>(small(), 3);
  STATIC_REQUIRE(found.parameter_bytes == 4 * 29);
  STATIC_REQUIRE(found.gradient_bytes == 4 * 22);
  STATIC_REQUIRE(found.optimizer_bytes == 2 * 4 * 22);
  STATIC_REQUIRE(found.gathered_peak_bytes == 0);
  STATIC_REQUIRE(found.reduce_peak_bytes == 0);
  STATIC_REQUIRE(found.all_gather == Sum{});
  STATIC_REQUIRE(found.reduce_scatter == Sum{});
  STATIC_REQUIRE(found.all_reduce.count == 3);
  STATIC_REQUIRE(found.all_reduce.bytes == 88);
  CHECK(found.sent_bytes == Catch::Approx(2 * 88 * 2 / 3.0));
}

TEST_CASE("hybrid sharding is sharding and an all-reduce of the parts", "[shard]") {
  constexpr auto flat = estimate<OneByOne<FullShard>>(small(), 3);
  constexpr auto found = estimate<OneByOne<HybridShard, Hybrid<2, 3>>>(small(), 6);
  STATIC_REQUIRE(found.all_reduce == Sum{3, 4 * (4 + 3 + 2), 36});
  STATIC_REQUIRE(found.all_gather == flat.all_gather);
  STATIC_REQUIRE(found.reduce_scatter == flat.reduce_scatter);
  STATIC_REQUIRE(found.reduce_peak_bytes == flat.reduce_peak_bytes);
  STATIC_REQUIRE(found.peak_bytes == flat.peak_bytes);
  STATIC_REQUIRE(found.sent_bytes == flat.sent_bytes + 36);
  // The mesh beside the strategy, an axis to infer, the number of ranks from the mesh.
  STATIC_REQUIRE(estimate<OneByOne<HybridShard>, Hybrid<2, 3>>(small()) == found);
  STATIC_REQUIRE(estimate<OneByOne<HybridShard>, Hybrid<2, Infer>>(small(), 6) == found);
  STATIC_REQUIRE(estimate<Fabric<OneByOne<HybridShard>, Hybrid<2, 3>, On<Cpu>>>(small()) == found);

  constexpr auto kept = estimate<OneByOne<HybridShardGradOp, Hybrid<2, 3>>>(small());
  STATIC_REQUIRE(kept.all_gather == estimate<OneByOne<ShardGradOp>>(small(), 3).all_gather);
  STATIC_REQUIRE(kept.all_reduce == found.all_reduce);
}

TEST_CASE("an axis of one rank sends nothing", "[shard]") {
  STATIC_REQUIRE(estimate<OneByOne<HybridShard, Hybrid<1, 3>>>(small()) == estimate<OneByOne<FullShard>>(small(), 3));
  STATIC_REQUIRE(estimate<OneByOne<HybridShardGradOp, Hybrid<1, 3>>>(small()) ==
                 estimate<OneByOne<ShardGradOp>>(small(), 3));
  STATIC_REQUIRE(estimate<OneByOne<HybridShard, Hybrid<3, 1>>>(small()) == estimate<OneByOne<NoShard>>(small(), 3));
}

TEST_CASE("one rank calls no collective and has what a single device has", "[shard]") {
  constexpr auto alone = estimate<SingleDevice>(small());
  STATIC_REQUIRE(alone.parameter_bytes == 4 * 29);
  STATIC_REQUIRE(alone.peak_bytes == 4 * 29 + 3 * 4 * 22);
  STATIC_REQUIRE(alone.sent_bytes == 0);
  STATIC_REQUIRE(estimate<OneByOne<FullShard>>(small(), 1) == alone);
  STATIC_REQUIRE(estimate<FSDP<ShardGradOp, Wrap>>(small(), 1) == alone);
  STATIC_REQUIRE(estimate<FSDP<NoShard, Wrap>>(small(), 1) == alone);
  STATIC_REQUIRE(estimate<FSDP<HybridShard, Wrap, Hybrid<1, 1>>>(small()) == alone);
  STATIC_REQUIRE(estimate<DDP<>>(small(), 1) == alone);
}

TEST_CASE("prefetching and its limit say how much is whole at once, and units around stay whole", "[shard]") {
  using Nested = decltype([](auto config) {
    return estimates::estimate_sharded(nested(), config, {.shard = 2}).gathered_peak_bytes;
  });
  auto const peak = [](std::size_t prefetch, std::size_t limit) {
    return Nested{}(FsdpConfig{.prefetch = prefetch, .rate_limit = limit, .bucket_bytes = 0});
  };
  CHECK(peak(0, 2) == 10 + 100 + 60);  // y in a in the root
  CHECK(peak(1, 2) == peak(0, 2));     // a counts: with x or y in it there is room for no more
  CHECK(peak(1, 1) == peak(0, 2));     // nothing may be gathered ahead
  CHECK(peak(1, 0) == peak(0, 2));     // what computes is whole all the same
  CHECK(peak(2, 2) == peak(0, 2));
  CHECK(peak(1, 3) == 10 + 100 + 50 + 60);  // y while x computes
  CHECK(peak(2, 3) == peak(1, 3));
  CHECK(peak(3, 4) == 240);  // b as well
  CHECK(peak(9, 9) == 240);
  CHECK(Nested{}(FsdpConfig{.sharding = ShardGradOp::config, .bucket_bytes = 0}) == 240);
  CHECK(estimate<OneByOne<FullShard, RateLimit<1>>>(small(), 3).gathered_peak_bytes == 4 * (15 + 12));
}

TEST_CASE("whole gradients have the memory of RateLimit buckets at most, and of two at least", "[shard]") {
  auto const peak = [](std::size_t limit, Spread spread, bool exchanges) {
    return estimates::estimate_sharded(nested(), {.rate_limit = limit, .bucket_bytes = 0}, spread, exchanges)
        .reduce_peak_bytes;
  };
  // Backward enters b, a, y, x; a and the root wait for what is inside of them.
  CHECK(peak(2, {.shard = 2}, true) == 10 + 100 + 2 * 60);  // y's while they are copied into one piece
  CHECK(peak(1, {.shard = 2}, true) == peak(2, {.shard = 2}, true));
  CHECK(peak(0, {.shard = 2}, true) == peak(2, {.shard = 2}, true));
  CHECK(peak(3, {.shard = 2}, true) == 10 + 100 + 60 + 2 * 50);         // y's on their way while x's are copied
  CHECK(peak(9, {.shard = 2}, true) == 10 + 20 + 60 + 50 + 2 * 100);    // all of them, and a's while they are copied
  CHECK(peak(2, {.shard = 5}, true) == 10 + 100 + (60 + 3 * 12) + 50);  // and what a backend receives
  CHECK(peak(2, {.shard = 5}, false) == 10 + 100 + 2 * 60);
  CHECK(peak(9, {.replicate = 2, .shard = 2}, true) == peak(2, {.shard = 2}, true));
  // Gradients of what is used before the units inside arrive after those units'.
  auto split = nested();
  split.units[1].before_inner = 1;
  CHECK(estimates::estimate_sharded(split, {.bucket_bytes = 0}, {.shard = 2}).reduce_peak_bytes == 10 + 2 * 60);
  CHECK(peak(2, {.shard = 1}, true) == 0);
  STATIC_REQUIRE(estimate<Fabric<OneByOne<FullShard>, On<Cuda>>>(small(), 3).reduce_peak_bytes == 4 * (10 + 7 + 9));
  STATIC_REQUIRE(estimate<Fabric<OneByOne<FullShard>, Nccl>>(small(), 3).reduce_peak_bytes == 4 * (10 + 7 + 9));
}

TEST_CASE("a sharding of one's own is known by its value", "[shard]") {
  STATIC_REQUIRE(estimate<FSDP<MyOwn, Wrap>>(small(), 3) == estimate<FSDP<ShardGradOp, Wrap>>(small(), 3));
  STATIC_REQUIRE(estimate<ZeRO<3, Wrap>>(small(), 3) == estimate<FSDP<FullShard, Wrap>>(small(), 3));
}

TEST_CASE("whole parameters with sharded optimizers are gathered after the step", "[shard]") {
  constexpr auto second = estimate<ZeRO<2, Bucket<1>>>(small(), 3);
  STATIC_REQUIRE(second.parameter_bytes == 4 * 36);  // whole groups with their padding
  STATIC_REQUIRE(second.gradient_bytes == 4 * 9);
  STATIC_REQUIRE(second.optimizer_bytes == 2 * 4 * 9);
  STATIC_REQUIRE(second.gathered_peak_bytes == 0);
  STATIC_REQUIRE(second.all_gather == Sum{3, 4 * 27, 4 * 27 * 2 / 3});
  STATIC_REQUIRE(second.reduce_scatter == Sum{3, 4 * 27, 4 * 27 * 2 / 3});
  // The first stage is the second with all whole gradients at once.
  STATIC_REQUIRE(estimate<ZeRO<1, Bucket<1>>>(llama(128, 64, 8, 128), 2).reduce_peak_bytes == 4 * (16448 + 8 * 41088));
  STATIC_REQUIRE(estimate<ZeRO<2, Bucket<1>>>(llama(128, 64, 8, 128), 2).reduce_peak_bytes == 4 * (16448 + 2 * 41088));
}

TEST_CASE("DDP sends every gradient once around", "[shard]") {
  constexpr auto found = estimate<DDP<>>(small(), 3);
  STATIC_REQUIRE(found.parameter_bytes == 4 * 29);
  STATIC_REQUIRE(found.gradient_bytes == 4 * 22);
  STATIC_REQUIRE(found.optimizer_bytes == 2 * 4 * 22);
  STATIC_REQUIRE(found.reduce_peak_bytes == 0);
  STATIC_REQUIRE(found.all_reduce.count == 1);
  STATIC_REQUIRE(found.all_reduce.bytes == 88);
  CHECK(found.sent_bytes == Catch::Approx(2 * 88 * 2 / 3.0));
  STATIC_REQUIRE(estimate<DDP<GradientsInBuckets<false>>>(small(), 3).reduce_peak_bytes == 88);
  // From the last gradient to the first: 5 + 7 elements fill a bucket of 28 bytes, 4 + 6 the next one.
  STATIC_REQUIRE(estimate<DDP<Bucket<28>>>(small(), 3).all_reduce.count == 2);
  STATIC_REQUIRE(estimate<DDP<Bucket<28>>>(small(), 3).all_reduce.bytes == 88);
  STATIC_REQUIRE(estimate<DDP<Bucket<28, 20>>>(small(), 3).all_reduce.count == 3);
  STATIC_REQUIRE(estimate<DDP<Bucket<60, 20>>>(small(), 3).all_reduce.count == 2);
  STATIC_REQUIRE(estimate<DDP<CommHook<Bf16Compress>>>(small(), 3).all_reduce.bytes == 44);
  STATIC_REQUIRE(estimate<DDP<CommHook<Bf16Compress>>>(small(), 3).reduce_peak_bytes ==
                 44);  // the copies that are sent
  STATIC_REQUIRE(estimate<DDP<CommHook<Bf16Compress>, Bucket<28>>>(small(), 3).reduce_peak_bytes == 44);
  STATIC_REQUIRE(estimate<DDP<CommHook<Fp16Compress>, GradientsInBuckets<false>>>(small(), 3).reduce_peak_bytes ==
                 44 + 88);
}

TEST_CASE("models with little in them", "[shard]") {
  for (int num_ranks = 1; num_ranks <= 9; ++num_ranks) {
    CHECK(estimate<FSDP<FullShard, Wrap>>(ModelShape{}, num_ranks) == Estimate{});
    CHECK(estimate<FSDP<FullShard, Wrap>>(ModelShape{.units = {{}, {.parent = 0}}}, num_ranks) == Estimate{});
    CHECK(estimate<FSDP<FullShard, Wrap>>(ModelShape{.units = {{.parameters = {{0}, {0, false}}}}}, num_ranks) ==
          Estimate{});
    CHECK(estimate<DDP<>>(ModelShape{}, num_ranks) == Estimate{});
    // One element: a chunk of it on every rank.
    auto const scalar = estimate<FSDP<FullShard, Wrap>>(ModelShape{.units = {{.parameters = {{1}}}}}, num_ranks);
    CHECK(scalar.parameter_bytes == 4);
    CHECK(scalar.all_gather.count == (num_ranks > 1 ? 1 : 0));
    CHECK(scalar.all_gather.bytes == (num_ranks > 1 ? 4 * num_ranks : 0));
  }
  // Frozen throughout: gathered, never reduced.
  auto const frozen = estimate<FSDP<FullShard, Wrap>>(
      ModelShape{.units = {{}, {.parent = 0, .parameters = {{8, false}}}}}, 2);
  CHECK(frozen.all_gather.count == 2);
  CHECK(frozen.reduce_scatter == Sum{});
  CHECK(frozen.gradient_bytes + frozen.optimizer_bytes + frozen.reduce_peak_bytes == 0);
}

TEST_CASE("parts of all ranks make the whole, padding apart: worlds 1 to 9", "[shard]") {
  for (auto const& shape : {small(), tiny(), odd(), nested()})
    for (int num_ranks = 1; num_ranks <= 9; ++num_ranks) {
      auto const parts = estimate<OneByOne<FullShard>>(shape, num_ranks);
      auto const whole = estimate<SingleDevice>(shape);
      auto const most_padding = shape.units.size() * 2 * (num_ranks - 1) * shape.element_bytes;  // trained and frozen
      CHECK(parts.parameter_bytes * num_ranks >= whole.parameter_bytes);
      CHECK(parts.parameter_bytes * num_ranks <= whole.parameter_bytes + most_padding);
      CHECK(parts.reduce_scatter.bytes == (num_ranks == 1 ? 0 : parts.gradient_bytes * num_ranks));
    }
}

TEST_CASE("fp32 parts that are gathered in bf16: half the gathers, and gradients that arrive in bf16",
          "[shard][precision]") {
  constexpr auto plain = estimate<OneByOne<FullShard>>(small(), 3);
  constexpr auto found = estimate<Fabric<OneByOne<FullShard>, Bf16Mixed>>(small(), 3);
  STATIC_REQUIRE(found.parameter_bytes == plain.parameter_bytes);
  STATIC_REQUIRE(found.gradient_bytes == plain.gradient_bytes);
  STATIC_REQUIRE(found.optimizer_bytes == plain.optimizer_bytes);
  STATIC_REQUIRE(found.gathered_peak_bytes == plain.gathered_peak_bytes / 2);
  STATIC_REQUIRE(found.all_gather == Sum{8, plain.all_gather.bytes / 2, plain.all_gather.ring_bytes / 2});
  STATIC_REQUIRE(found.reduce_scatter == plain.reduce_scatter);
  // The root's and the first block's as they arrived, and the block's copied into one piece of fp32.
  STATIC_REQUIRE(found.reduce_peak_bytes == 2 * (10 + 7) + 4 * 9);
  STATIC_REQUIRE(found.largest_unit_bytes == plain.largest_unit_bytes);
  STATIC_REQUIRE(estimate<OneByOne<FullShard>, MixedPrecision<Bf16, Fp32, Fp32, Fp32>>(small(), 3) == found);
}

TEST_CASE("a reduction in bf16 sends half, and its result is held beside what is handed out", "[shard][precision]") {
  constexpr auto plain = estimate<OneByOne<FullShard>>(small(), 3);
  constexpr auto found = estimate<OneByOne<FullShard>, MixedPrecision<Bf16, Bf16, Fp32, Fp32>>(small(), 3);
  STATIC_REQUIRE(found.reduce_scatter == Sum{3, plain.reduce_scatter.bytes / 2, plain.reduce_scatter.ring_bytes / 2});
  STATIC_REQUIRE(found.gradient_bytes == plain.gradient_bytes);
  // While the first block's arrive: the root's, and the last block's on their way: in one piece, this rank's part of
  // the sum, a received one.
  STATIC_REQUIRE(found.reduce_peak_bytes == 2 * (10 + 7 + (6 + 2 + 2)));
  STATIC_REQUIRE(estimate<OneByOne<FullShard>, MixedPrecision<Fp32, Bf16, Fp32, Fp32>>(small(), 3).all_gather ==
                 plain.all_gather);
}

TEST_CASE("true precisions keep, gather and reduce what they say", "[shard][precision]") {
  constexpr auto plain = estimate<OneByOne<FullShard>>(small(), 3);
  constexpr auto low = estimate<Fabric<OneByOne<FullShard>, Bf16>>(small(), 3);
  STATIC_REQUIRE(low.parameter_bytes == plain.parameter_bytes / 2);
  STATIC_REQUIRE(low.gradient_bytes == plain.gradient_bytes / 2);
  STATIC_REQUIRE(low.optimizer_bytes == plain.optimizer_bytes / 2);
  STATIC_REQUIRE(low.gathered_peak_bytes == plain.gathered_peak_bytes / 2);
  STATIC_REQUIRE(low.all_gather.bytes == plain.all_gather.bytes / 2);
  STATIC_REQUIRE(low.reduce_scatter == plain.reduce_scatter);  // in fp32
  STATIC_REQUIRE(low.largest_unit_bytes == 2 * 13);
  STATIC_REQUIRE(estimate<OneByOne<FullShard>, Fp16>(small(), 3) == low);
  // In fp64 everything is twice as wide, whatever the module was built in.
  constexpr auto twice = estimate<OneByOne<FullShard>, Fp64>(small(), 3);
  STATIC_REQUIRE(twice.peak_bytes == 2 * plain.peak_bytes);
  STATIC_REQUIRE(twice.sent_bytes == 2 * plain.sent_bytes);
  STATIC_REQUIRE(estimate<DDP<>, Bf16>(small(), 3).all_reduce.bytes == 88);  // in fp32
  STATIC_REQUIRE(estimate<DDP<>, Bf16>(small(), 3).gradient_bytes == 44);
  STATIC_REQUIRE(estimate<DDP<>, Bf16>(small(), 3).reduce_peak_bytes == 88);  // copies in fp32
  STATIC_REQUIRE(estimate<DDP<>, MixedPrecision<Fp32, Bf16>>(small(), 3).reduce_peak_bytes == 44);
  STATIC_REQUIRE(estimate<DDP<CommHook<Fp16Compress>>, Bf16>(small(), 3).all_reduce.bytes == 44);
  STATIC_REQUIRE(estimate<DDP<>, Bf16Mixed>(small(), 3) == estimate<DDP<>>(small(), 3));
  STATIC_REQUIRE(estimate<SingleDevice, Fp64>(small()).peak_bytes == 2 * estimate<SingleDevice>(small()).peak_bytes);
  STATIC_REQUIRE(estimate<OneByOne<FullShard>, Fp32>(small(), 3) == plain);
}

TEST_CASE("what is not cut is cast all the same: worlds of one, NoShard, an axis of one", "[shard][precision]") {
  constexpr auto plain = estimate<SingleDevice>(small());
  constexpr auto one = estimate<OneByOne<FullShard>, Bf16Mixed>(small(), 1);
  STATIC_REQUIRE(one.parameter_bytes == plain.parameter_bytes);
  STATIC_REQUIRE(one.gathered_peak_bytes == 2 * (13 + 7 + 9));
  STATIC_REQUIRE(one.reduce_peak_bytes == 0);  // what is added up is what is handed out
  STATIC_REQUIRE(one.sent_bytes == 0);
  STATIC_REQUIRE(estimate<OneByOne<HybridShard, Hybrid<1, 1>>, Bf16Mixed>(small()) == one);
  constexpr auto whole = estimate<OneByOne<NoShard>, Bf16Mixed>(small(), 3);
  STATIC_REQUIRE(whole.gathered_peak_bytes == 2 * 29);
  STATIC_REQUIRE(whole.reduce_peak_bytes == 0);
  STATIC_REQUIRE(whole.all_reduce == estimate<OneByOne<NoShard>>(small(), 3).all_reduce);
  STATIC_REQUIRE(whole.all_gather == Sum{});
  // Reduced in bf16, in a piece of its own until it is handed out: the root's from its first gradient on, the last
  // block's on their way, the first's.
  STATIC_REQUIRE(estimate<OneByOne<NoShard>, MixedPrecision<Bf16, Bf16, Fp32, Fp32>>(small(), 3).reduce_peak_bytes ==
                 2 * (10 + 5 + 7));
  STATIC_REQUIRE(estimate<OneByOne<NoShard>, Bf16>(small(), 1).reduce_peak_bytes == 0);  // autograd's own
}

TEST_CASE("layers that keep statistics travel apart, as they are", "[shard][precision]") {
  constexpr auto shape = [] { return ModelShape{.units = {{.parameters = {{10}, {6, true, true}}}}}; };
  constexpr auto found = estimate<FSDP<FullShard>, Bf16Mixed>(shape(), 2);
  STATIC_REQUIRE(found.all_gather == Sum{2, 2 * 10 + 4 * 6, (2 * 10 + 4 * 6) / 2.0});
  STATIC_REQUIRE(found.reduce_scatter == Sum{2, 4 * 16, 4 * 8});
  STATIC_REQUIRE(found.gathered_peak_bytes == 2 * 10 + 4 * 6);
  STATIC_REQUIRE(estimate<FSDP<FullShard>>(shape(), 2).all_gather.count == 1);
  constexpr auto low = estimate<FSDP<FullShard>, weft::Bf16>(
      shape(), 2);  // stored in bf16, statistics and what stands beside them are not
  STATIC_REQUIRE(low.parameter_bytes == (2 * 10 + 4 * 6) / 2);
  STATIC_REQUIRE(low.all_gather == Sum{2, 2 * 10 + 4 * 6, (2 * 10 + 4 * 6) / 2.0});
  STATIC_REQUIRE(low.largest_unit_bytes == 2 * 10 + 4 * 6);
  constexpr auto replicated = estimate<DDP<>, weft::Bf16>(shape(), 2);
  STATIC_REQUIRE(replicated.parameter_bytes == 2 * 10 + 4 * 6);
  STATIC_REQUIRE(replicated.all_reduce == Sum{2, 4 * 16, 4 * 16});
  STATIC_REQUIRE(replicated.reduce_peak_bytes == 4 * 10);
}

TEST_CASE("what cannot be estimated is an error that says why", "[shard]") {
  CHECK_THROWS_MATCHES((estimate<FSDP<FullShard, Wrap>>(small())), ConfigurationError,
                       MessageMatches(ContainsSubstring("estimate on 0 ranks")));
  CHECK_THROWS_MATCHES((estimate<DDP<>>(ModelShape{.units = {{}, {.parent = 1}}}, 2)), ConfigurationError,
                       MessageMatches(ContainsSubstring("unit 1 has the parent 1")));
  CHECK_THROWS_AS((estimate<DDP<>>(ModelShape{.units = {{.parent = 0}}}, 2)), ConfigurationError);
  CHECK_THROWS_AS((estimate<DDP<>>(ModelShape{.units = {{}, {}}}, 2)), ConfigurationError);
  CHECK_THROWS_MATCHES((estimate<FSDP<HybridShard, Wrap, Hybrid<2, 3>>>(small(), 4)), ConfigurationError,
                       MessageMatches(ContainsSubstring("has 6 ranks, but there are 4")));
}

namespace {

struct Peer {
  Sum all_gather, reduce_scatter, all_reduce;
  std::size_t held_bytes = 0;
};

// One step of rank 0 as a peer's golden file has it, and what the fullest rank holds.
Peer peer(std::string const& name) {
  std::ifstream file(WEFT_TEST_DATA "/golden/" + name + ".json");
  auto const golden = nlohmann::json::parse(file);
  Peer found;
  for (auto const* phase : {"forward", "backward"}) {
    auto const rows = golden.at("comm_one_step_rank0").value(phase, nlohmann::json::object());
    for (auto const& [key, row] : rows.items()) {
      auto const kind = key.substr(0, key.find('@'));
      Sum& sum = kind == "all_gather"       ? found.all_gather
                 : kind == "reduce_scatter" ? found.reduce_scatter
                                            : found.all_reduce;
      sum.count += row["count"].get<std::size_t>();
      sum.bytes += row["bytes"].get<std::size_t>();
      sum.ring_bytes += row["ring_bytes"].get<double>();
    }
  }
  for (auto const& rank : golden["held_by_rank"])
    found.held_bytes = std::max(found.held_bytes, rank["params_bytes"].get<std::size_t>());
  return found;
}

bool no_more(Sum const& ours, Sum const& theirs) {
  return ours.count <= theirs.count && ours.bytes <= theirs.bytes && ours.ring_bytes <= theirs.ring_bytes;
}
bool no_more(Estimate const& ours, Peer const& theirs) {
  return no_more(ours.all_gather, theirs.all_gather) && no_more(ours.reduce_scatter, theirs.reduce_scatter) &&
         no_more(ours.all_reduce, theirs.all_reduce) && ours.parameter_bytes <= theirs.held_bytes;
}

}  // namespace

TEST_CASE("a unit a trip is what the peer sends that keeps its root whole", "[shard]") {
  auto const theirs = peer("fsdp2-auto-2_tiny_sgd");
  auto const ours = estimate<OneByOne<FullShard>>(tiny(), 2);
  CHECK(ours.all_gather == theirs.all_gather);
  CHECK(ours.reduce_scatter == theirs.reduce_scatter);
  CHECK(ours.parameter_bytes == theirs.held_bytes);

  auto const kept = peer("fsdp2-shard-grad-op-2_tiny_sgd");
  auto const ours_kept = estimate<OneByOne<ShardGradOp>>(tiny(), 2);
  CHECK(ours_kept.all_gather == kept.all_gather);
  CHECK(ours_kept.reduce_scatter == kept.reduce_scatter);

  auto const replicated = peer("hsdp-2x2_tiny_sgd");
  auto const ours_replicated = estimate<OneByOne<HybridShard, Hybrid<2, 2>>>(tiny());
  CHECK(ours_replicated.all_reduce == replicated.all_reduce);
  CHECK(ours_replicated.reduce_scatter == replicated.reduce_scatter);

  auto const ddp = peer("ddp-2_tiny_sgd");
  CHECK(estimate<DDP<>>(tiny(), 2).all_reduce == ddp.all_reduce);
  CHECK(estimate<DDP<>>(tiny(), 2).parameter_bytes == ddp.held_bytes);
}

TEST_CASE("in bf16 a unit a trip is what the peer sends with param_dtype bf16 and reduce_dtype fp32",
          "[shard][precision]") {
  auto const kept = peer("fsdp2-shard-grad-op-2_tiny_bf16-mixed");
  auto const ours = estimate<OneByOne<ShardGradOp>, Bf16Mixed>(tiny(), 2);
  CHECK(ours.all_gather == kept.all_gather);
  CHECK(ours.reduce_scatter == kept.reduce_scatter);
  CHECK(ours.parameter_bytes == kept.held_bytes);
  auto const replicated = peer("hsdp-2x2_tiny_bf16-mixed");
  CHECK(estimate<OneByOne<HybridShard, Hybrid<2, 2>>, Bf16Mixed>(tiny()).all_reduce == replicated.all_reduce);
  CHECK(no_more(estimate<OneByOne<HybridShard, Hybrid<2, 2>>, Bf16Mixed>(tiny()), replicated));
  CHECK(no_more(estimate<OneByOne<FullShard>, Bf16Mixed>(tiny(), 2), peer("fsdp2-2_tiny_bf16-mixed")));
  CHECK(no_more(estimate<FSDP<FullShard, Wrap>, Bf16Mixed>(odd(), 4), peer("fsdp2-4_odd_bf16-mixed-adamw-acc2-clip")));
  CHECK(estimate<OneByOne<FullShard>, Bf16>(tiny(), 2).parameter_bytes == peer("fsdp2-2_tiny_bf16-true").held_bytes);
}

TEST_CASE("weft is to send no more than the peers, in no more calls", "[shard]") {
  CHECK(no_more(estimate<OneByOne<FullShard>>(tiny(), 2), peer("fsdp2-2_tiny_sgd")));
  CHECK(no_more(estimate<FSDP<FullShard, Wrap>>(tiny(), 2), peer("fsdp2-2_tiny_sgd")));
  CHECK(no_more(estimate<OneByOne<FullShard>>(odd(), 4), peer("fsdp2-4_odd_sgd")));
  CHECK(no_more(estimate<FSDP<FullShard, Wrap>>(odd(), 4), peer("fsdp2-4_odd_sgd")));
  CHECK(no_more(estimate<OneByOne<ShardGradOp>>(tiny(), 2), peer("fsdp2-shard-grad-op-2_tiny_sgd")));
  CHECK(no_more(estimate<FSDP<ShardGradOp, Wrap>>(tiny(), 2), peer("fsdp2-shard-grad-op-2_tiny_sgd")));
  CHECK(no_more(estimate<OneByOne<HybridShard, Hybrid<2, 2>>>(tiny(), 4), peer("hsdp-2x2_tiny_sgd")));
  CHECK(no_more(estimate<FSDP<HybridShard, Wrap, Hybrid<2, 2>>>(tiny(), 4), peer("hsdp-2x2_tiny_sgd")));
}

// A strategy of one's own, around another one: it divides every parameter over an axis, and what is inside has the
// rest.
namespace own {
template <class Inner>
struct Divide {
  using category = weft::category::strategy;
  using inner = Inner;
  static constexpr std::string_view name = "Divide";
  static constexpr NoConfig config{};
};
struct CountedHook {
  static constexpr std::size_t sent_bytes(std::size_t element_bytes) { return element_bytes / 4; }
  static constexpr bool sends_copies = true;
};
}  // namespace own

namespace weft {
template <class Inner>
struct StrategyEstimate<own::Divide<Inner>> {
  static constexpr Estimate of(ModelShape shape, EstimateContext context) {
    auto const parts = context.extent("tensor");
    for (auto& unit : shape.units)
      for (auto& parameter : unit.parameters) parameter.numel /= parts;
    context.num_ranks /= parts;
    return StrategyEstimate<Inner>::of(shape, context);
  }
};
}  // namespace weft

TEST_CASE("a strategy of one's own says what it costs, also around another one", "[estimate]") {
  constexpr auto shape = [] {
    return ModelShape{.units = {{.parameters = {{64}}}, {.parent = 0, .parameters = {{128}, {32}}}}};
  };
  constexpr auto half = [] {
    return ModelShape{.units = {{.parameters = {{32}}}, {.parent = 0, .parameters = {{64}, {16}}}}};
  };
  using Grid = Mesh<Axis<"data", Infer>, Axis<"tensor", 2>>;
  STATIC_CHECK(estimate<own::Divide<FSDP<FullShard, Wrap>>, Grid>(shape(), 8) ==
               estimate<FSDP<FullShard, Wrap>>(half(), 4));
  STATIC_CHECK(estimate<own::Divide<DDP<>>, Grid>(shape(), 4) == estimate<DDP<>>(half(), 2));
  STATIC_CHECK(estimate<DDP<CommHook<own::CountedHook>>>(shape(), 2).all_reduce.bytes == (64 + 128 + 32));
}
