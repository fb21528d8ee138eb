#include "pieces.hpp"

using namespace test;
using weft::Axis;
using weft::Infer;
using weft::Mesh;

namespace {

template <class Sharding, int Replicas, class... Options>
using Hybrid =
    weft::FSDP<Sharding, weft::WrapPolicy<Block>, Mesh<Axis<"replicate", Replicas>, Axis<"shard", Infer>>, Options...>;
/// The axes the other way round: shards of neighboring ranks' replicas.
template <int Shards>
using Turned =
    weft::FSDP<weft::HybridShard, weft::WrapPolicy<Block>, Mesh<Axis<"shard", Shards>, Axis<"replicate", Infer>>>;

/// A sharding of one's own is the same constexpr value under another name.
struct KeptInGroups {
  static constexpr weft::ShardConfig config{.reshard_after_forward = false, .replicate = true};
};

auto const stack = [] { return Stack(); };

template <class Strategy>
void compare(int world, Training const& t = {.accumulate = 2}) {
  INFO("world " << world);
  auto const description = weft::AdamW{.lr = 1e-2};
  check_equal(train<Strategy>(world, stack, description, t), train<weft::SingleDevice>(1, stack, description, t));
}

/// One weight; the loss's gradient is whatever the rank says.
template <class Strategy>
double averaged(int world) {
  return on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
    auto [model, optimizer] = fabric.setup(Scalar(), weft::SGD{.lr = 0.25});
    for (int step = 0; step < 3; ++step) {
      fabric.backward(model(1.0 + fabric.global_rank()));
      auto const norm = fabric.clip_gradients(model, optimizer, weft::ClipNorm{INFINITY}).template item<double>();
      expect(std::abs(norm - (1.0 + fabric.world_size()) / 2) < 1e-6,
             "the average's norm on every rank, not " + std::to_string(norm));
      optimizer.step();
      optimizer.zero_grad();
    }
    auto const weight = whole_weights(fabric, model)[0].template item<double>();
    expect(fabric.all_reduce(weight, weft::ReduceOp::max) == fabric.all_reduce(weight, weft::ReduceOp::min),
           "equal bits on all ranks");
    return (1.0 - weight) / 0.75;
  });
}
template <int Replicas>
using HybridScalar = weft::FSDP<weft::HybridShard, Mesh<Axis<"replicate", Replicas>, Axis<"shard", Infer>>>;

template <class Strategy>
std::vector<std::string> events_of_second_step(int world) {
  return on_ranks<Strategy>(world, [world](Run<Strategy>& fabric) {
    auto [model, optimizer] = fabric.setup(Row(), weft::SGD{.lr = 0.1});
    std::vector<std::string> lines;
    for (int step = 0; step < 2; ++step) {
      fabric.recorder().start();
      fabric.backward(model(at::ones({3})).sum());
      lines.clear();
      for (auto const& event : fabric.recorder().stop())
        lines.push_back(event.phase + " " + name_of(event.kind) + "@" + std::to_string(event.group_size) + " " +
                        std::to_string(event.bytes / 4));
      optimizer.step();
      optimizer.zero_grad();
    }
    std::string sequence;
    for (auto const& line : lines) sequence += line + "\n";
    for (int rank = 0; rank < world; ++rank)
      expect(fabric.broadcast(sequence, rank) == sequence, "the same calls of both groups in one order on every rank");
    return lines;
  });
}
template <int Replicas, class Sharding = weft::HybridShard>
using HybridPieces =
    weft::FSDP<Sharding, Pieces, Mesh<Axis<"replicate", Replicas>, Axis<"shard", Infer>>, weft::Bucket<1>>;

}  // namespace

TEST_CASE("hybrid sharding equals one process, on square and on degenerate meshes", "[shard]") {
  SECTION("2 x 2") { compare<Hybrid<weft::HybridShard, 2>>(4); }
  SECTION("2 x 2, a unit a bucket, kept between forward and backward") {
    compare<Hybrid<weft::HybridShardGradOp, 2, weft::Bucket<1>>>(4);
  }
  SECTION("2 x 2, a sharding of one's own") { compare<Hybrid<KeptInGroups, 2>>(4, {.accumulate = 1}); }
  SECTION("2 x 2, accumulating into shards") {
    compare<Hybrid<weft::HybridShard, 2, weft::AccumulateSharded>>(4, {.accumulate = 3});
  }
  SECTION("1 x 4") { compare<Hybrid<weft::HybridShard, 1>>(4); }
  SECTION("4 x 1") { compare<Hybrid<weft::HybridShard, 4>>(4); }
  SECTION("1 x 3") { compare<Hybrid<weft::HybridShard, 1>>(3); }
  SECTION("3 x 1") { compare<Hybrid<weft::HybridShard, 3>>(3); }
  SECTION("2 x 1") { compare<Hybrid<weft::HybridShardGradOp, 2>>(2); }
  SECTION("1 x 1") { compare<Hybrid<weft::HybridShard, 1>>(1); }
  SECTION("the axes the other way round") { compare<Turned<2>>(4); }
}

TEST_CASE("NUM-02: a mesh axis of one drops no average", "[shard][known]") {
  CHECK(averaged<HybridScalar<4>>(4) == Catch::Approx(2.5));
  CHECK(averaged<HybridScalar<1>>(4) == Catch::Approx(2.5));
  CHECK(averaged<HybridScalar<2>>(4) == Catch::Approx(2.5));
  CHECK(averaged<HybridScalar<2>>(2) == Catch::Approx(1.5));
}

namespace {

/// Its gradient is what it is called with.
struct TimesImpl : torch::nn::Module {
  TimesImpl() { w = register_parameter("w", torch::ones({5}, at::kHalf)); }
  at::Tensor forward(at::Tensor const& c) { return w * c; }
  at::Tensor w;
};
WEFT_MODULE(Times);

}  // namespace

TEST_CASE("NUM-04: fp16 gradients neither overflow nor vanish when they are averaged over shards and replicas",
          "[shard][known]") {
  auto const average = []<class Strategy>(std::type_identity<Strategy>, double value) {
    return on_ranks<Strategy>(4, [value](Run<Strategy>& fabric) {
      auto model = fabric.setup(Times());
      fabric.backward(model(at::full({5}, value, at::kHalf)).sum());
      auto const gradient = unsharded_gradients(model)[0];
      expect(gradient.scalar_type() == at::kHalf, "reduced as fp16");
      return std::pair(gradient.min().template item<double>(), gradient.max().template item<double>());
    });
  };
  for_each_strategy<weft::FSDP<weft::FullShard>, weft::FSDP<weft::ShardGradOp>, weft::FSDP<weft::NoShard>,
                    weft::FSDP<weft::HybridShard, weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", 2>>>>(
      [&](auto strategy) {
        CHECK(average(strategy, 30000.0) == std::pair(30000.0, 30000.0));
        CHECK(average(strategy, std::ldexp(1.0, -23)) == std::pair(std::ldexp(1.0, -23), std::ldexp(1.0, -23)));
      });
}

TEST_CASE("hybrid: frozen parameters beside trained ones in one bucket, and unfrozen later", "[shard]") {
  using Strategy = weft::FSDP<weft::HybridShard, Mesh<Axis<"replicate", 2>, Axis<"shard", 2>>>;
  CHECK(on_ranks<Strategy>(4, [](Run<Strategy>& fabric) {
    auto model = fabric.setup(NestedRow());
    for (bool unfrozen : {false, true}) {
      if (unfrozen) model->last->w.requires_grad_(true);
      for (auto const& parameter : model.parameters()) parameter.mutable_grad().reset();
      fabric.backward(model(at::full({1}, fabric.global_rank() + 1.0)).sum());
      auto const sums = gradient_sums(model);  // w, outer.w, outer.frozen, outer.inner.w, last.w
      for (std::size_t i = 0; i < sums.size(); ++i) {
        bool const trained = model.table().rows()[i].name != "outer.frozen" &&
                             (unfrozen || model.table().rows()[i].name != "last.w");
        expect(trained ? std::abs(sums[i] - 2.5) < 1e-5 : std::isnan(sums[i]),
               model.table().rows()[i].name + ": " + text_of(sums));
      }
    }
    return 1;
  }));
}

TEST_CASE("NUM-01: averaging applied once under every sharding", "[shard][known]") {
  CHECK(averaged<weft::FSDP<>>(2) == Catch::Approx(1.5));
  CHECK(averaged<weft::FSDP<weft::ShardGradOp>>(2) == Catch::Approx(1.5));
  CHECK(averaged<weft::FSDP<weft::NoShard>>(2) == Catch::Approx(1.5));
  CHECK(averaged<weft::FSDP<>>(4) == Catch::Approx(2.5));
}

TEST_CASE(
    "COL-07: the trace of hybrid shardings, on every rank: gathers among shards, each shard's gradient reduced over "
    "its replicas while the next one is on its way",
    "[shard][known]") {
  using Trace = std::vector<std::string>;
  CHECK(events_of_second_step<HybridPieces<2>>(4) ==
        Trace{"forward all_gather@2 4", "forward all_gather@2 8", "forward all_gather@2 16",
              "forward all_gather@2 24",  // root, a, b, c
              "backward all_gather@2 24", "backward all_gather@2 16", "backward reduce_scatter@2 24",
              "backward all_gather@2 8",  // c, b ahead, c's gradient
              "backward all_reduce@2 12", "backward reduce_scatter@2 16", "backward all_reduce@2 8",
              "backward reduce_scatter@2 8",  // over replicas; b; a
              "backward all_reduce@2 4", "backward reduce_scatter@2 4", "backward all_reduce@2 2"});
  CHECK(events_of_second_step<HybridPieces<1>>(2) ==
        events_of_second_step<weft::FSDP<weft::FullShard, Pieces, weft::Bucket<1>>>(2));
  CHECK(events_of_second_step<HybridPieces<2>>(2) ==
        events_of_second_step<weft::FSDP<weft::NoShard, Pieces, weft::Bucket<1>>>(2));
}

TEST_CASE("TP2-09: a hybrid mesh is what was asked for after setup, or an error with both numbers", "[shard][known]") {
  using Strategy = Hybrid<weft::HybridShard, 2>;
  auto const members = on_ranks<Strategy>(4, [](Run<Strategy>& fabric) {
    auto const model = fabric.setup(Stack());
    auto& shard = *fabric.mesh().axis("shard");
    auto const own = at::full({1}, fabric.global_rank(), at::kLong);
    auto group = at::empty({shard.size()}, at::kLong);
    shard.all_gather_into(group, own);
    return fabric.all_gather(group);
  });
  CHECK(members.equal(
      at::tensor({0, 1, 0, 1, 2, 3, 2, 3}, at::kLong).view({4, 2})));  // replicate 2 x shard 2, the last axis fastest
  auto const message = failure_on_ranks<Strategy>(3, [](Run<Strategy>& fabric) { fabric.setup(Stack()); });
  CHECK_THAT(message, Catch::Matchers::ContainsSubstring("replicate 2") && Catch::Matchers::ContainsSubstring("3"));
}
