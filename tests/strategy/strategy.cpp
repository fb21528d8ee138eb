#include <catch2/catch_all.hpp>

#include <weft/strategy/mechanism.hpp>
#include <weft/strategy/with_launcher.hpp>
#include <weft/strategy/with_strategy.hpp>

using namespace weft;

namespace {

struct Block {};
struct OtherBlock {};
struct OwnHook {};

struct LocalSgdConfig {
  int every = 8;
  bool operator==(LocalSgdConfig const&) const = default;
};
struct LocalSgd {
  using category = weft::category::strategy;
  static constexpr std::string_view name = "LocalSgd";
  static constexpr LocalSgdConfig config{.every = 16};
};
struct OwnMode {
  static constexpr ShardConfig config{.reshard_after_forward = false};
};

// Around another strategy: cuts layers along an axis of its own, and leaves the others to Inner.
template <class Inner>
struct CutLinear {
  using category = weft::category::strategy;
  using inner = Inner;
  static constexpr std::string_view name = "CutLinear";
  static constexpr NoConfig config{};
};
// FSDP by another name: its values are all that rules know of it.
template <class... Options>
struct OwnShards {
  using category = weft::category::strategy;
  using options = core::TypeList<Options...>;
  using takes = core::TypeList<weft::category::wrap, weft::category::comm_hook, weft::category::mesh>;
  static constexpr std::string_view name = "OwnShards";
  static constexpr FsdpConfig config{.sharding = HybridShard::config};
  static constexpr bool casts_parameters = true;
};
struct OwnWhole : LocalSgd {
  static constexpr bool keeps_parameters_unsharded = true;
};
struct OwnCast : OwnWhole {
  static constexpr bool casts_parameters = true;
};

// What is constexpr is looked at by the compiler and by the program.
template <class T>
auto shown(T const& value) {
  return value;
}

}  // namespace

TEST_CASE("DDP folds its options into one value", "[strategy]") {
  STATIC_REQUIRE(DDP<>::config == DdpConfig{});
  STATIC_REQUIRE(DDP<>::config.bucket_bytes == 25_MiB);
  STATIC_REQUIRE(DDP<>::config.first_bucket_bytes == 1_MiB);
  STATIC_REQUIRE(std::is_same_v<DDP<>::hook, AllReduce>);

  using Full =
      DDP<StaticGraph, Bucket<4_MiB>, BroadcastBuffers<false>, CommHook<PowerSGD<2>>, GradientsInBuckets<false>>;
  constexpr DdpConfig expected{.bucket_bytes = 4_MiB,
                               .first_bucket_bytes = 4_MiB,
                               .static_graph = true,
                               .broadcast_buffers = false,
                               .gradients_in_buckets = false};
  STATIC_REQUIRE(Full::config == expected);
  CHECK(shown(Full::config) == shown(expected));
  STATIC_REQUIRE(Full::hook::rank == 2);
  STATIC_REQUIRE(Full::hook::start_iter == 1000);
  STATIC_REQUIRE(DDP<Bucket<4_MiB, 64_KiB>>::config.first_bucket_bytes == 64_KiB);
  STATIC_REQUIRE(std::is_same_v<DDP<FindUnused, CommHook<OwnHook>>::hook, OwnHook>);
  STATIC_REQUIRE(DDP<FindUnused, Bucket<1_MiB>>::config == DDP<Bucket<1_MiB>, FindUnused>::config);
}

TEST_CASE("FSDP folds its options into one value", "[strategy]") {
  STATIC_REQUIRE(FSDP<>::config == FsdpConfig{});
  STATIC_REQUIRE(std::is_same_v<FSDP<>::sharding, FullShard>);
  using S =
      FSDP<Prefetch<3>, WrapPolicy<Block>, ShardGradOp, RateLimit<4>, SizeBased<1000>, OffloadOptimizer, Bucket<2_MiB>>;
  constexpr FsdpConfig expected{.sharding = ShardGradOp::config,
                                .offload = {.optimizer = true},
                                .prefetch = 3,
                                .rate_limit = 4,
                                .bucket_bytes = 2_MiB};
  STATIC_REQUIRE(S::config == expected);
  CHECK(shown(S::config) == shown(expected));
  STATIC_REQUIRE(std::is_same_v<S::wrap, core::TypeList<WrapPolicy<Block>, SizeBased<1000>>>);
  STATIC_REQUIRE(FSDP<OwnMode>::config == FSDP<ShardGradOp>::config);
  STATIC_REQUIRE(FSDP<OffloadParams, Nvme<"/scratch">>::config.offload == OffloadConfig{true, true});
}

TEST_CASE("the stages of ZeRO shard more and more", "[strategy]") {
  STATIC_REQUIRE_FALSE(ZeRO<1>::config.sharding.shard_gradients);
  STATIC_REQUIRE(ZeRO<1>::config.sharding.shard_optimizer);
  STATIC_REQUIRE(ZeRO<2>::config.sharding.shard_gradients);
  STATIC_REQUIRE_FALSE(ZeRO<2>::config.sharding.shard_parameters);
  STATIC_REQUIRE(ZeRO<3>::config == FSDP<FullShard>::config);
}

TEST_CASE("a composition finds policies by category", "[strategy]") {
  using C = Composition<FSDP<FullShard, WrapPolicy<Block>>, Bf16>;
  STATIC_REQUIRE(C::valid);
  STATIC_REQUIRE(C::check());
  STATIC_REQUIRE(std::is_same_v<C::strategy, FSDP<FullShard, WrapPolicy<Block>>>);
  STATIC_REQUIRE(std::is_same_v<C::precision, Bf16>);
  STATIC_REQUIRE(std::is_same_v<C::device, AnyDevice>);
  STATIC_REQUIRE(std::is_same_v<C::backend, ByDevice>);
  STATIC_REQUIRE(std::is_same_v<C::launcher, Fork>);
  STATIC_REQUIRE(std::is_same_v<C::mesh, NoMesh>);
  STATIC_REQUIRE(std::is_same_v<C::memory, core::TypeList<>>);
  STATIC_REQUIRE(C::world == 0);

  using Empty = Composition<>;
  STATIC_REQUIRE(Empty::valid);
  STATIC_REQUIRE(std::is_same_v<Empty::strategy, SingleDevice>);
  STATIC_REQUIRE(std::is_same_v<Empty::precision, Fp32>);
}

TEST_CASE("the order of policies is free", "[strategy]") {
  using Hybrid = Mesh<Axis<"replicate", 2>, Axis<"shard", 2>>;
  using S = FSDP<HybridShard, WrapPolicy<Block>>;
  using A = Composition<S, Bf16Mixed, On<Cpu>, Gloo, Popen, Hybrid, ActivationCheckpointing<Block>>;
  using B = Composition<ActivationCheckpointing<Block>, Hybrid, Popen, Gloo, On<Cpu>, Bf16Mixed, S>;
  STATIC_REQUIRE(A::valid);
  STATIC_REQUIRE(std::is_same_v<A::strategy, B::strategy>);
  STATIC_REQUIRE(std::is_same_v<A::precision, B::precision>);
  STATIC_REQUIRE(std::is_same_v<A::device, B::device>);
  STATIC_REQUIRE(std::is_same_v<A::backend, B::backend>);
  STATIC_REQUIRE(std::is_same_v<A::launcher, B::launcher>);
  STATIC_REQUIRE(std::is_same_v<A::mesh, B::mesh>);
  STATIC_REQUIRE(std::is_same_v<A::memory, B::memory>);
  STATIC_REQUIRE(A::world == 4);
}

TEST_CASE("a mesh may stand in the strategy that needs it", "[strategy]") {
  using Hybrid = Mesh<Axis<"replicate", 2>, Axis<"shard", Infer>>;
  STATIC_REQUIRE(std::is_same_v<Composition<FSDP<HybridShard, Hybrid>>::mesh, Hybrid>);
  STATIC_REQUIRE(Composition<FSDP<HybridShard, Hybrid>>::world == 0);
}

TEST_CASE("memory policies unite, one of each kind", "[strategy]") {
  using C = Composition<ActivationCheckpointing<Block, OtherBlock>, OffloadActivations<OtherBlock>>;
  STATIC_REQUIRE(C::valid);
  STATIC_REQUIRE(C::offloads_activations);
  STATIC_REQUIRE(
      std::is_same_v<C::memory,
                     core::TypeList<ActivationCheckpointing<Block, OtherBlock>, OffloadActivations<OtherBlock>>>);
  STATIC_REQUIRE_FALSE(Composition<ActivationCheckpointing<Block>>::offloads_activations);
  STATIC_REQUIRE_FALSE(Composition<ActivationCheckpointing<Block>, ActivationCheckpointing<OtherBlock>>::valid);
  STATIC_REQUIRE_FALSE(Composition<OffloadActivations<>>::valid);
}

TEST_CASE("a refused composition is softly known and stands for the default", "[strategy]") {
  STATIC_REQUIRE_FALSE(Composition<DDP<>, DDP<>>::valid);
  STATIC_REQUIRE_FALSE(Composition<DDP<FullShard>>::valid);
  STATIC_REQUIRE_FALSE(Composition<DDP<FindUnused, StaticGraph>>::valid);
  STATIC_REQUIRE_FALSE(Composition<FSDP<FullShard, Block>>::valid);
  STATIC_REQUIRE_FALSE(Composition<DDP<>, Nccl, On<Cpu>>::valid);
  STATIC_REQUIRE_FALSE(Composition<Block>::valid);
  STATIC_REQUIRE_FALSE(Composition<Auto<DDP<>, Lazy<FSDP<Block>>>>::valid);
  STATIC_REQUIRE(std::is_same_v<Composition<DDP<>, DDP<>, Bf16>::strategy, SingleDevice>);
  STATIC_REQUIRE(std::is_same_v<Composition<DDP<>, DDP<>, Bf16>::precision, Fp32>);
}

TEST_CASE("a strategy of one's own is a strategy", "[strategy]") {
  STATIC_REQUIRE(Strategy<LocalSgd>);
  STATIC_REQUIRE(Strategy<DDP<>>);
  STATIC_REQUIRE(Strategy<FSDP<>>);
  STATIC_REQUIRE(Strategy<SingleDevice>);
  STATIC_REQUIRE_FALSE(Strategy<Bf16>);
  STATIC_REQUIRE_FALSE(Strategy<Block>);
  STATIC_REQUIRE(topology_of<LocalSgd>() == Topology{});
  STATIC_REQUIRE_FALSE(topology_of<Lazy<SingleDevice>>().processes);
  STATIC_REQUIRE(std::is_same_v<Composition<Bf16, LocalSgd, Fork>::strategy, LocalSgd>);
}

TEST_CASE("a strategy names the one inside of it", "[strategy]") {
  STATIC_REQUIRE(std::is_void_v<inner_of_t<LocalSgd>>);
  STATIC_REQUIRE(std::is_same_v<inner_of_t<CutLinear<FSDP<>>>, FSDP<>>);
  STATIC_REQUIRE(std::is_same_v<inner_of_t<Lazy<DDP<>>>, DDP<>>);
  STATIC_REQUIRE(std::is_same_v<inner_of_t<ModelParallel<Plan<Block>>>, DDP<>>);
  STATIC_REQUIRE(std::is_same_v<inner_of_t<ModelParallel<Plan<Block>, FSDP<>>>, FSDP<>>);
  STATIC_REQUIRE(std::is_void_v<inner_of_t<CutLinear<void>>>);
  STATIC_REQUIRE(Composition<CutLinear<void>>::valid);
}

TEST_CASE("rules look through to inner strategies", "[strategy]") {
  using Cut = Mesh<Axis<"data_parallel", 2>, Axis<"cut", 2>>;
  using Hybrid = Mesh<Axis<"replicate", 2>, Axis<"shard", 2>, Axis<"cut", 2>>;
  using Flat = FSDP<FullShard, WrapPolicy<Block>>;
  using Shards = FSDP<HybridShard, WrapPolicy<Block>>;

  SECTION("a mesh stands beside a strategy around FSDP, though not beside flat FSDP alone") {
    STATIC_REQUIRE(Composition<CutLinear<Flat>, Cut>::valid);
    STATIC_REQUIRE(Composition<CutLinear<DDP<>>, Cut>::valid);
    STATIC_REQUIRE(Composition<CutLinear<CutLinear<Flat>>, Cut>::valid);
    STATIC_REQUIRE(Composition<ModelParallel<Plan<Block>, Flat>, Mesh<Axis<"tensor_parallel">>>::valid);
    STATIC_REQUIRE(Composition<Flat, Cut>::refusal.find("shards over all ranks") != std::string_view::npos);
  }
  SECTION("a hybrid sharding needs its axes at any depth") {
    STATIC_REQUIRE(Composition<CutLinear<Shards>, Hybrid>::valid);
    STATIC_REQUIRE(Composition<CutLinear<Lazy<Shards>>, Hybrid>::valid);
    STATIC_REQUIRE(Composition<CutLinear<Shards>>::refusal.starts_with("weft: HybridShard shards within groups"));
    STATIC_REQUIRE(Composition<CutLinear<CutLinear<Shards>>, Cut>::refusal.starts_with("weft: HybridShard reads the"));
    STATIC_REQUIRE(Composition<ModelParallel<Plan<Block>, Shards>, Mesh<Axis<"tensor_parallel">>>::refusal.starts_with(
        "weft: HybridShard reads the"));
    STATIC_REQUIRE(Composition<CutLinear<ModelParallel<Plan<Block>>>>::refusal.starts_with(
        "weft: ModelParallel<...> needs a mesh"));
  }
  SECTION("a mesh may be written in an inner strategy, and counts") {
    using Inside = Composition<CutLinear<CutLinear<FSDP<HybridShard, Hybrid>>>>;
    STATIC_REQUIRE(Inside::valid);
    STATIC_REQUIRE(std::is_same_v<Inside::mesh, Hybrid>);
    STATIC_REQUIRE(Inside::world == 8);
    STATIC_REQUIRE(Composition<CutLinear<FSDP<HybridShard, Hybrid>>, Cut>::refusal.starts_with(
        "weft: Fabric<...> has two meshes"));
    STATIC_REQUIRE(Composition<ModelParallel<Plan<Block>, Cut, FSDP<HybridShard, Hybrid>>>::refusal.starts_with(
        "weft: Fabric<...> has two meshes"));
  }
  SECTION("who unshards parameters casts them") {
    STATIC_REQUIRE(Composition<CutLinear<Flat>, Bf16Mixed>::precision_config.autocast_inputs);
    STATIC_REQUIRE(Composition<Lazy<CutLinear<ZeRO<3>>>, Bf16Mixed>::precision_config.autocast_inputs);
    STATIC_REQUIRE_FALSE(Composition<CutLinear<DDP<>>, Bf16Mixed>::precision_config.autocast_inputs);
    STATIC_REQUIRE(Composition<CutLinear<Flat>, MixedPrecision<Bf16>>::valid);
    STATIC_REQUIRE(Composition<CutLinear<DDP<>>, MixedPrecision<Bf16>>::refusal.find("casts parameters where they are "
                                                                                     "gathered") !=
                   std::string_view::npos);
  }
  SECTION("what is wrong with an inner strategy is said") {
    STATIC_REQUIRE(
        Composition<CutLinear<FSDP<FullShard, Block>>>::refusal.starts_with("weft: FSDP<Mode, Wrap>: write"));
    STATIC_REQUIRE_FALSE(Composition<CutLinear<Bf16>>::valid);
  }
}

TEST_CASE("rules ask the values of a strategy, not which one it is", "[strategy]") {
  using Hybrid = Mesh<Axis<"replicate", 2>, Axis<"shard", 2>>;
  STATIC_REQUIRE(Composition<OwnShards<>, Hybrid>::valid);
  STATIC_REQUIRE(Composition<OwnShards<WrapPolicy<Block>, CommHook<OwnHook>, Hybrid>>::valid);
  STATIC_REQUIRE(Composition<OwnShards<>>::refusal.starts_with("weft: HybridShard shards within groups"));
  STATIC_REQUIRE(Composition<OwnShards<FindUnused>, Hybrid>::refusal.starts_with("weft: FindUnused, StaticGraph,"));
  STATIC_REQUIRE(Composition<OwnShards<Prefetch<2>>, Hybrid>::refusal.starts_with("weft: this strategy does not take"));
  STATIC_REQUIRE(Composition<OwnShards<>, Hybrid, Bf16Mixed>::precision_config.autocast_inputs);
  STATIC_REQUIRE(Composition<LocalSgd, MixedPrecision<Bf16>>::valid);
  STATIC_REQUIRE_FALSE(Composition<OwnWhole, MixedPrecision<Bf16>>::valid);
  STATIC_REQUIRE(Composition<OwnCast, MixedPrecision<Bf16>>::valid);
}

TEST_CASE("a composition says why it is refused", "[strategy]") {
  STATIC_REQUIRE(Composition<>::refusal.empty());
  STATIC_REQUIRE(Composition<FSDP<FullShard, WrapPolicy<Block>>, Bf16>::refusal.empty());
  // By the list, by the options of its strategy, by its mesh, by what does not go together.
  CHECK(
      shown(Composition<Block, DDP<>>::refusal) ==
      "weft: Fabric<Policies...> is made of policies: write modules as WrapPolicy<Block> inside FSDP<...>, and give a "
      "policy of your own its category, as in using category = weft::category::strategy");
  STATIC_REQUIRE(Composition<DDP<>, DDP<>, Nccl, On<Cpu>>::refusal.starts_with("weft: Fabric<...> has two strategies"));
  STATIC_REQUIRE(Composition<Auto<FSDP<>, DDP<FullShard>>>::refusal.starts_with("weft: DDP<...> shards nothing"));
  STATIC_REQUIRE(Composition<FSDP<HybridShard>, Mesh<Axis<"shard", 2>, Axis<"shard", 2>>>::refusal ==
                 "weft: Mesh<...> has two axes of one name: give each axis its own");
  STATIC_REQUIRE(Composition<DDP<>, Nccl, On<Cpu>>::refusal ==
                 "weft: Nccl moves data between CUDA devices: with On<Cpu> write Gloo, or leave the backend out");
  STATIC_REQUIRE(strategy::OptionRules::first_message<ZeRO<4>>.starts_with("weft: ZeRO<stage, ...> has the stages 1"));
  STATIC_REQUIRE(strategy::OptionRules::first_message<ZeRO<3>>.empty());
}

TEST_CASE("a policy without mechanism is known", "[strategy]") {
  STATIC_REQUIRE_FALSE(has_mechanism_v<LocalSgd>);
  STATIC_REQUIRE(std::is_same_v<mechanism_or_t<LocalSgd, SingleDevice>, SingleDevice>);
}

TEST_CASE("policies have names", "[strategy]") {
  STATIC_REQUIRE(name_of<DDP<FindUnused>>() == "DDP");
  STATIC_REQUIRE(name_of<On<Cpu>>() == "Cpu");
  STATIC_REQUIRE(name_of<LocalSgd>() == "LocalSgd");
  CHECK(name_of<Block>().find("Block") != std::string_view::npos);
}

TEST_CASE("a strategy is chosen by name", "[strategy]") {
  auto name = [](auto chosen) { return std::string(name_of<typename decltype(chosen)::type>()); };
  using Table = core::TypeList<Named<"ddp", DDP<>>, Named<"single", SingleDevice>>;
  CHECK(with_strategy<Named<"ddp", DDP<>>, Named<"single", SingleDevice>>("single", name) == "SingleDevice");
  CHECK(with_strategy<Table>("DDP", name) == "DDP");
  CHECK(with_strategy<Table, Named<"local_sgd", LocalSgd>>("local_SGD", name) == "LocalSgd");
  CHECK_THROWS_MATCHES(with_strategy<Table>("fsdp", name), ConfigurationError,
                       Catch::Matchers::Message("weft: there is no strategy \"fsdp\": write one of ddp, single"));
  CHECK_THROWS_AS(with_strategy<Table>("", name), ConfigurationError);

  int calls = 0;
  with_strategy<Table>("ddp", [&](auto) { ++calls; });
  CHECK(calls == 1);
}

TEST_CASE("Fabric's names stand for weft's launchers, or are refused with the reason", "[strategy][launch]") {
  auto const launcher_of = [](std::string_view name) {
    return with_launcher(name, [](auto chosen) { return name_of<typename decltype(chosen)::type>(); });
  };
  for (auto name : {"fork", "Fork", "ddp_fork", "ddp_notebook"}) CHECK(launcher_of(name) == "Fork");
  for (auto name : {"popen", "ddp", "ddp_find_unused_parameters_true", "spawn", "DDP_spawn"})
    CHECK(launcher_of(name) == "Popen");
  CHECK(launcher_of("environment") == "Environment");
  for (auto name : {"forkserver", "ddp_forkserver"})
    CHECK_THROWS_WITH(launcher_of(name), Catch::Matchers::StartsWith("weft: \"" + std::string(name) +
                                                                     "\" forks ranks from a process that") &&
                                             Catch::Matchers::ContainsSubstring("write the launcher \"popen\""));
  for (auto name : {"", "fsdp", "threads"})
    CHECK_THROWS_WITH(launcher_of(name),
                      Catch::Matchers::ContainsSubstring("there is no launcher \"" + std::string(name) +
                                                         "\": write fork, popen or environment"));
}

TEST_CASE("Fabric's names stand for weft's strategies", "[strategy]") {
  using Table = core::concat_t<standard_strategies<Block>, core::TypeList<Named<"single", SingleDevice>>>;
  auto plan_of = [](std::string_view name) {
    return with_strategy<Table>(name, [](auto chosen) {
      using S = typename decltype(chosen)::type;
      static_assert(Composition<S>::check());
      return name_of<S>();
    });
  };
  for (auto name : {"ddp", "ddp_spawn", "ddp_fork", "ddp_notebook", "ddp_find_unused_parameters_true"})
    CHECK(plan_of(name) == "DDP");
  CHECK(plan_of("fsdp") == "FSDP");
  CHECK_THROWS_WITH(plan_of("deepspeed"), Catch::Matchers::ContainsSubstring("write one of dp, ddp, "));
  CHECK(plan_of("dp") == "DataParallel");
  CHECK(plan_of("single") == "SingleDevice");
}
