// strategy/composition.hpp -- what a list of policies means.
// In: policies in any order. Out: one policy for each category, with what fwd.hpp says of those not given; or, for a
// list that means nothing, one sentence that says what to write.
//
//   Composition<FSDP<FullShard, WrapPolicy<TransformerBlock>>, Bf16>::precision   is Bf16
//   Composition<DDP<>, DDP<>>::valid                                              is false, and check() and refusal say
//   why
//
// In Fabric<...>: a strategy, a precision, a device, a backend, a launcher, a mesh, and memory policies.
// In DDP<...>: Bucket, CommHook, FindUnused, StaticGraph, BroadcastBuffers, GradientsInBuckets.
// In FSDP<...>: a sharding, wrap policies, Prefetch, RateLimit, Bucket, offloading, a mesh. In ZeRO<n, ...>: the same
// without sharding and mesh. In ModelParallel<...>: plans, a mesh, a strategy for the other axes.
// What stands inside of a strategy is judged in strategy/strategy_options.hpp.
#pragma once

#include <weft/plan/mesh.hpp>
#include <weft/strategy/activation.hpp>
#include <weft/strategy/machine.hpp>
#include <weft/strategy/precision.hpp>
#include <weft/strategy/strategy_options.hpp>

namespace weft::inline v0 {
namespace strategy {

// What a strategy and those inside of it say together.
template <class Strategies>
struct Nested;
template <class... Strategies>
struct Nested<core::TypeList<Strategies...>> {
  using meshes = core::concat_t<plan::policies_t<category::mesh, typename OptionsOf<Strategies>::list>...>;
  static constexpr bool is_hybrid = (IsHybrid<Strategies> || ...);
  static constexpr bool needs_plan = (NeedsPlan<Strategies> || ...);
  static constexpr bool casts_parameters = (CastsParameters<Strategies> || ...);
  static constexpr bool keeps_parameters_unsharded = (KeepsParametersUnsharded<Strategies> || ...);
};

// What the rules judge: the policies as given, sound or not.
template <class... Policies>
struct Given {
  using list = core::TypeList<Policies...>;
  template <class Category>
  static constexpr std::size_t num = plan::num_policies_v<Category, list>;
  template <class Category>
  static constexpr bool has = num<Category> != 0;

  using strategy = plan::policy_or_t<category::strategy, list, DefaultStrategy>;
  using precision = plan::policy_or_t<category::precision, list, DefaultPrecision>;
  using device = plan::policy_or_t<category::device, list, DefaultDevice>;
  using backend = plan::policy_or_t<category::backend, list, DefaultBackend>;
  using launcher = plan::policy_or_t<category::launcher, list, DefaultLauncher>;
  using memory = plan::policies_t<category::memory, list>;

  static constexpr Topology topology = topology_of<strategy>();
  static constexpr bool is_one_rank = !topology.processes && !topology.devices;
  using nested = Nested<with_inner_t<strategy>>;

  // The mesh stands beside the strategy, or in the one that needs it.
  using meshes = core::concat_t<plan::policies_t<category::mesh, list>, typename nested::meshes>;
  using mesh = core::first_or_t<meshes, DefaultMesh>;
  static constexpr bool has_mesh = meshes::size != 0;

  static constexpr PrecisionConfig config = [] {
    if constexpr (Precision<precision>)
      return precision::config;
    else
      return PrecisionConfig{};
  }();
  // As the strategy carries it out: what operations meet has one dtype, where parameters are cast by whoever gathers
  // them.
  static constexpr PrecisionConfig carried_out = [] {
    auto result = config;
    result.autocast_inputs = config.autocast_inputs || (config.autocast && nested::casts_parameters);
    return result;
  }();
};

template <class T>
struct SitsInShard : std::bool_constant<IsShardOption<T>::value || is_of_v<T, category::wrap>> {};
template <class T>
struct SitsInDdp : std::bool_constant<IsDdpOption<T>::value || is_of_v<T, category::bucket>> {};
template <class T>
struct SitsInPlan : std::bool_constant<is_of_v<T, category::plan>> {};
template <class T>
struct Recomputes : std::false_type {};
template <class... Blocks>
struct Recomputes<ActivationCheckpointing<Blocks...>> : std::true_type {};
template <class T>
struct OffloadsActivations : std::false_type {};
template <class... Blocks>
struct OffloadsActivations<OffloadActivations<Blocks...>> : std::true_type {};
// Over all ranks that there are: it has no use for a mesh, though in other shardings it takes one.
template <class S>
inline constexpr bool shards_all_ranks_v = HasSharding<S> && !IsHybrid<S> && takes_v<category::mesh, S>;
// Blocks of a policy of memory: there are some, each stands there once, and none is itself a policy.
template <class T>
struct NamesNoBlock : std::false_type {};
template <class T>
struct RepeatsABlock : std::false_type {};
template <class T>
struct NamesAPolicy : std::false_type {};
template <class T>
  requires requires { typename T::blocks; } && is_of_v<T, category::memory>
struct NamesNoBlock<T> : std::bool_constant<T::blocks::size == 0> {};
template <class T>
  requires requires { typename T::blocks; } && is_of_v<T, category::memory>
struct RepeatsABlock<T> : std::bool_constant<core::unique_t<typename T::blocks>::size != T::blocks::size> {};
template <class T>
  requires requires { typename T::blocks; } && is_of_v<T, category::memory>
struct NamesAPolicy<T> : std::bool_constant<T::blocks::template count<IsPolicy> != 0> {};
template <class T>
struct MixesOtherThanNumbers : std::false_type {};
template <class... Parts>
struct MixesOtherThanNumbers<MixedPrecision<Parts...>>
    : std::bool_constant<!(core::TypeList<Fp64, Fp32, Bf16, Fp16>::template contains<Parts> && ...)> {};
template <class T>
struct IsMalformedPrecision : std::bool_constant<is_of_v<T, category::precision> && !Precision<T>> {};
template <class T>
struct IsNamelessStrategy : std::bool_constant<is_of_v<T, category::strategy> && !HasName<T>> {};
template <class T>
struct IsValuelessStrategy : std::bool_constant<is_of_v<T, category::strategy> && !HasValue<T>> {};

// The rules of what is given, G, most basic first; see core/rules.hpp.
#define WEFT_RULE(Name, Condition, Message) WEFT_DETAIL_RULE(Name, G, Condition, Message)
namespace rules {

WEFT_RULE(NotAPolicy, (G::list::template count<IsNoPolicy> != 0),
          "weft: Fabric<Policies...> is made of policies: write modules as WrapPolicy<Block> inside FSDP<...>, and "
          "give a policy of your own its category, as in using category = weft::category::strategy");
WEFT_RULE(ShardOptionBeside, (G::list::template count<SitsInShard> != 0),
          "weft: shardings, WrapPolicy, Prefetch, RateLimit and Offload options stand inside of their strategy: write "
          "FSDP<FullShard, WrapPolicy<Block>, ...>");
WEFT_RULE(DdpOptionBeside, (G::list::template count<SitsInDdp> != 0),
          "weft: Bucket, CommHook, FindUnused, StaticGraph, BroadcastBuffers and GradientsInBuckets stand inside of "
          "their strategy: write DDP<FindUnused, ...>");
WEFT_RULE(PlanBeside, (G::list::template count<SitsInPlan> != 0),
          "weft: Plan and Parallelize stand inside of their strategy: write ModelParallel<Plan<Block, ...>>");

WEFT_RULE(TwoStrategies, (G::template num<category::strategy> > 1),
          "weft: Fabric<...> has two strategies: keep one; to combine tensor and data parallelizm write "
          "ModelParallel<Plan<...>, Mesh<...>, FSDP<...>>");
WEFT_RULE(TwoPrecisions, (G::template num<category::precision> > 1),
          "weft: Fabric<...> has two precisions: keep one; for different types of parameters and reductions write "
          "MixedPrecision<param, reduce>");
WEFT_RULE(MixedPrecisionOfOther, (G::list::template count<MixesOtherThanNumbers> != 0),
          "weft: MixedPrecision<param, reduce, buffer, output> takes Fp64, Fp32, Bf16 or Fp16 in each place: write "
          "MixedPrecision<Bf16, Fp32>, or Bf16Mixed by itself");
WEFT_RULE(TwoDevices, (G::template num<category::device> > 1),
          "weft: Fabric<...> has two devices: keep On<Cpu> or On<Cuda>; how many of them is a launch option");
WEFT_RULE(TwoBackends, (G::template num<category::backend> > 1),
          "weft: Fabric<...> has two backends: keep one of Gloo, Nccl, Simulated<n>");
WEFT_RULE(TwoLaunchers, (G::template num<category::launcher> > 1),
          "weft: Fabric<...> has two launchers: keep one of Fork, Popen, Environment");
WEFT_RULE(TwoMeshes, (G::meshes::size > 1),
          "weft: Fabric<...> has two meshes: keep one, with all axes in it: Mesh<Axis<\"data_parallel\", 2>, "
          "Axis<\"tensor_parallel\", Infer>>");

WEFT_RULE(TwoRecomputations, (G::list::template count<Recomputes> > 1),
          "weft: Fabric<...> has two ActivationCheckpointing policies: write all blocks into one, as in "
          "ActivationCheckpointing<EncoderLayer, DecoderLayer>");
WEFT_RULE(TwoOffloads, (G::list::template count<OffloadsActivations> > 1),
          "weft: Fabric<...> has two OffloadActivations policies: write all blocks into one, as in "
          "OffloadActivations<EncoderLayer, DecoderLayer>");
WEFT_RULE(MemoryOfNothing, (G::list::template count<NamesNoBlock> != 0),
          "weft: ActivationCheckpointing<> and OffloadActivations<> name no block: write the units whose activations "
          "they mean, as in ActivationCheckpointing<TransformerBlock>");
WEFT_RULE(
    MemoryOfOneBlockTwice, (G::list::template count<RepeatsABlock> != 0),
    "weft: ActivationCheckpointing<Block, ...> or OffloadActivations<Block, ...> names a block twice: once is enough");
WEFT_RULE(MemoryOfAPolicy, (G::list::template count<NamesAPolicy> != 0),
          "weft: ActivationCheckpointing<Block> and OffloadActivations<Block> take modules, not policies: write "
          "ActivationCheckpointing<TransformerBlock> beside FSDP<..., WrapPolicy<TransformerBlock>>");
WEFT_RULE(NamelessStrategy, (G::list::template count<IsNamelessStrategy> != 0),
          "weft: a strategy has a name: write static constexpr std::string_view name = \"...\" in yours");
WEFT_RULE(ValuelessStrategy, (G::list::template count<IsValuelessStrategy> != 0),
          "weft: a strategy has one constexpr value that compares: write static constexpr MyConfig config{...} in "
          "yours, or weft::NoConfig config{}");
WEFT_RULE(MalformedPrecision, (G::list::template count<IsMalformedPrecision> != 0),
          "weft: a precision has a name and a value: write static constexpr std::string_view name = \"...\" and static "
          "constexpr weft::PrecisionConfig config{...} in yours");

WEFT_RULE(MeshWithSingleDevice, (G::has_mesh && G::is_one_rank),
          "weft: SingleDevice has one rank and no mesh: leave the mesh out, or name a strategy that uses it: "
          "FSDP<HybridShard, ...> or ModelParallel<...>");
WEFT_RULE(MeshWithFlat, (G::has_mesh && !G::topology.mesh),
          "weft: DDP, DataParallel and ZeRO treat all ranks alike: leave the mesh out, or name a strategy that uses "
          "it: FSDP<HybridShard, ...> or ModelParallel<...>");
WEFT_RULE(MeshWithFlatSharding, (G::has_mesh && shards_all_ranks_v<typename G::strategy>),
          "weft: FSDP<FullShard | ShardGradOp | NoShard, ...> shards over all ranks: leave the mesh out, or write "
          "FSDP<HybridShard, ...> or ModelParallel<Plan<...>, Mesh<...>, FSDP<...>>");
WEFT_RULE(HybridWithoutMesh, (G::nested::is_hybrid && !G::has_mesh),
          "weft: HybridShard shards within groups of ranks and needs to know them: write FSDP<HybridShard, "
          "WrapPolicy<Block>, Mesh<Axis<\"replicate\", 2>, Axis<\"shard\", Infer>>>, or FullShard for one group");
WEFT_RULE(HybridMeshAxes,
          (G::nested::is_hybrid && G::has_mesh && !(G::mesh::has_axis("replicate") && G::mesh::has_axis("shard"))),
          "weft: HybridShard reads the axes \"replicate\" and \"shard\": write Mesh<Axis<\"replicate\", 2>, "
          "Axis<\"shard\", Infer>>");
WEFT_RULE(ModelParallelWithoutMesh, (G::nested::needs_plan && !G::has_mesh),
          "weft: ModelParallel<...> needs a mesh: write ModelParallel<Plan<...>, Mesh<Axis<\"data_parallel\", 2>, "
          "Axis<\"tensor_parallel\", Infer>>>");
WEFT_RULE(ModelParallelMeshAxes, (G::nested::needs_plan && G::has_mesh && !G::mesh::has_axis("tensor_parallel")),
          "weft: ModelParallel<...> divides tensors over the axis \"tensor_parallel\": write "
          "Mesh<Axis<\"data_parallel\", 2>, Axis<\"tensor_parallel\", Infer>>");
WEFT_RULE(SimulatedWorld,
          (G::has_mesh && G::mesh::is_known && simulated_world_v<typename G::backend> != 0 &&
           simulated_world_v<typename G::backend> != std::size_t{G::mesh::world}),
          "weft: Simulated<World> and the mesh speak of different numbers of ranks: write the product of the axes as "
          "World, or Infer in one axis");

WEFT_RULE(LauncherOfOneProcess, (G::template has<category::launcher> && !G::topology.processes),
          "weft: SingleDevice and DataParallel are one process and start no others: leave the launcher out, or name a "
          "strategy of several processes, as in Fabric<DDP<>, Fork>");
WEFT_RULE(BackendOfOneProcess, (G::template has<category::backend> && !G::topology.processes),
          "weft: SingleDevice and DataParallel send nothing between processes: leave the backend out, or name a "
          "strategy of several processes, as in Fabric<DDP<>, Gloo>");
WEFT_RULE(NcclOnCpu, (uses_nccl_v<typename G::backend> && std::is_same_v<typename G::device, On<Cpu>>),
          "weft: Nccl moves data between CUDA devices: with On<Cpu> write Gloo, or leave the backend out");
WEFT_RULE(LossScalingOnCpu,
          (G::config.loss_scaling && G::config.computed == Number::fp16 && std::is_same_v<typename G::device, On<Cpu>>),
          "weft: Fp16Mixed scales its loss on CUDA devices: with On<Cpu> write Bf16Mixed, which needs no scaling");
WEFT_RULE(ComputedInOtherNumbers,
          (!G::config.autocast && G::config.computed != G::config.stored && G::nested::keeps_parameters_unsharded &&
           !G::nested::casts_parameters),
          "weft: MixedPrecision<...>, or a config that computes in other numbers than it stores, casts parameters "
          "where they are gathered: with SingleDevice, DDP and DataParallel write Bf16Mixed, which casts in each "
          "operation (.autocast = true), or Bf16, which stores what it computes in");
WEFT_RULE(ScalingOfFp16Parameters, (G::config.loss_scaling && G::config.stored == Number::fp16),
          "weft: gradients of fp16 cannot be unscaled, and have the dtype of their parameters: write .stored = "
          "Number::fp32 beside .loss_scaling = true, as Fp16Mixed does, or leave the scaling out");

}  // namespace rules
#undef WEFT_RULE

// What a list must satisfy before the options of its strategy are looked at, and after.
struct ListRules
    : core::RuleTable<rules::NotAPolicy, rules::ShardOptionBeside, rules::DdpOptionBeside, rules::PlanBeside,
                      rules::TwoStrategies, rules::TwoPrecisions, rules::MixedPrecisionOfOther, rules::TwoDevices,
                      rules::TwoBackends, rules::TwoLaunchers, rules::TwoRecomputations, rules::TwoOffloads,
                      rules::MemoryOfNothing, rules::MemoryOfOneBlockTwice, rules::MemoryOfAPolicy> {};
struct PairRules
    : core::RuleTable<rules::NamelessStrategy, rules::ValuelessStrategy, rules::MalformedPrecision, rules::TwoMeshes,
                      rules::MeshWithSingleDevice, rules::MeshWithFlat, rules::MeshWithFlatSharding,
                      rules::HybridWithoutMesh, rules::HybridMeshAxes, rules::ModelParallelWithoutMesh,
                      rules::ModelParallelMeshAxes, rules::SimulatedWorld, rules::LauncherOfOneProcess,
                      rules::BackendOfOneProcess, rules::NcclOnCpu, rules::LossScalingOnCpu,
                      rules::ComputedInOtherNumbers, rules::ScalingOfFp16Parameters> {};

}  // namespace strategy

template <class... Policies>
struct Composition {
 private:
  using given = weft::strategy::Given<Policies...>;
  // Each question is asked when the one before is answered.
  static constexpr bool list_holds = weft::strategy::ListRules::holds<given>;
  using refused = typename std::conditional_t<list_holds, weft::strategy::FirstRefused<typename given::strategy>,
                                              std::type_identity<void>>::type;
  static constexpr bool options_hold = list_holds && std::is_void_v<refused>;
  static constexpr bool mesh_holds = given::mesh::valid;
  static constexpr bool pairs_hold = [] {
    if constexpr (options_hold)
      return weft::strategy::PairRules::holds<given>;
    else
      return false;
  }();

  // The rule that refuses this list, named, not yet instantiated.
  template <bool Asserting>
  static constexpr auto first_rule() {
    if constexpr (valid)
      return std::type_identity<core::NoRule>{};
    else if constexpr (!list_holds)
      return std::type_identity<typename weft::strategy::ListRules::template first_rule<given, Asserting>>{};
    else if constexpr (!options_hold)
      return std::type_identity<typename weft::strategy::OptionRules::template first_rule<refused, Asserting>>{};
    else if constexpr (!mesh_holds)
      return std::type_identity<typename plan::MeshRules::template first_rule<typename given::mesh, Asserting>>{};
    else
      return std::type_identity<typename weft::strategy::PairRules::template first_rule<given, Asserting>>{};
  }
  template <bool Asserting>
  using first_rule_t = typename decltype(first_rule<Asserting>())::type;

 public:
  static constexpr bool valid = list_holds && options_hold && mesh_holds && pairs_hold;

 private:
  // A list that is refused counts as empty, so that whoever goes on with it meets no second error.
  using sound = std::conditional_t<valid, given, weft::strategy::Given<>>;

 public:
  using strategy = typename sound::strategy;
  using precision = typename sound::precision;
  static constexpr PrecisionConfig precision_config = sound::carried_out;
  using device = typename sound::device;
  using backend = typename sound::backend;
  using launcher = typename sound::launcher;
  using mesh = typename sound::mesh;
  using memory = typename sound::memory;
  static constexpr bool offloads_activations = memory::template count<weft::strategy::OffloadsActivations> != 0;

  // 0 if the number of ranks is only known when they are started.
  static constexpr int world = mesh::world;

  /// Why these policies do not go together, and what to write; empty if they do.
  static constexpr std::string_view refusal = first_rule_t<false>::message;

  // static_assert(Composition<...>::check()): nothing, or exactly one error, which says what to write.
  static consteval bool check() { return core::Reported<core::Violation<first_rule_t<true>>>; }
};

}  // namespace weft
