// strategy/strategy_options.hpp -- what may stand inside a strategy.
// In: a strategy with its options. Out: whether they fit, or one sentence that says what to write.
#pragma once

#include <weft/core/rules.hpp>
#include <weft/strategy/ddp.hpp>
#include <weft/strategy/derived.hpp>
#include <weft/strategy/fsdp.hpp>
#include <weft/strategy/model_parallel.hpp>
#include <weft/strategy/zero.hpp>

namespace weft::inline v0::strategy {

// The options of a strategy, if it takes any that weft knows.
template <class S>
struct OptionsOf {
  using list = core::TypeList<>;
  using takes = core::TypeList<>;
};
template <class S>
  requires requires {
    typename S::options;
    typename S::takes;
  }
struct OptionsOf<S> {
  using list = typename S::options;
  using takes = typename S::takes;
};

template <class T>
struct IsPolicy : std::bool_constant<Policy<T>> {};
template <class T>
struct IsNoPolicy : std::bool_constant<!Policy<T>> {};
template <class T>  // its place is Fabric<...> alone
struct SitsBeside : std::bool_constant<sits_in_fabric_v<T> && !sits_in_strategy_v<T>> {};
template <class T>
struct IsShardOption : std::bool_constant<is_of_v<T, category::sharding> || is_of_v<T, category::offload> ||
                                          is_of_v<T, category::prefetch> || is_of_v<T, category::rate_limit> ||
                                          is_of_v<T, category::ignore> || is_of_v<T, category::accumulation>> {};
template <class T>
struct IsDdpOption : std::bool_constant<is_of_v<T, category::comm_hook> || is_of_v<T, category::find_unused> ||
                                        is_of_v<T, category::static_graph> || is_of_v<T, category::broadcast_buffers> ||
                                        is_of_v<T, category::gradients_in_buckets>> {};
template <class T>
struct IsMalformedSharding : std::bool_constant<is_of_v<T, category::sharding> && !Sharding<T>> {};
template <class T>
struct WrapsAPolicy : std::bool_constant<wraps_a_policy_v<T>> {};
template <class T>
struct HooksNoClass : std::false_type {};
template <class Hook>
struct HooksNoClass<CommHook<Hook>> : std::bool_constant<!std::is_class_v<Hook>> {};
template <class T>
struct IsZero : std::false_type {};
template <class T>
  requires(is_of_v<T, category::prefetch> || is_of_v<T, category::rate_limit>)
struct IsZero<T> : std::bool_constant<T::value == 0> {};
template <std::size_t Bytes, std::size_t FirstBytes>
struct IsZero<Bucket<Bytes, FirstBytes>> : std::bool_constant<Bytes == 0 || FirstBytes == 0> {};

template <class List>
inline constexpr bool repeats_v = false;
template <class... Options>
inline constexpr bool repeats_v<core::TypeList<Options...>> =
    ((!std::is_base_of_v<category::unites, category_of_t<Options>> && Policy<Options> &&
      plan::num_policies_v<category_of_t<Options>, core::TypeList<Options...>> > 1) ||
     ...);

template <template <class> class Test, class S>
inline constexpr bool has_v = OptionsOf<S>::list::template count<Test> != 0;
template <class Category, class S>
inline constexpr bool has_option_v = plan::has_policy_v<Category, typename OptionsOf<S>::list>;
template <class Category, class S>
inline constexpr bool takes_v = OptionsOf<S>::takes::template contains<Category>;
template <template <class> class Test, class Takes>
struct Untaken {
  template <class T>
  using test = std::bool_constant<Test<T>::value && !Takes::template contains<category_of_t<T>>>;
};
template <template <class> class Test, class S>
inline constexpr bool has_untaken_v = has_v<Untaken<Test, typename OptionsOf<S>::takes>::template test, S>;

// What a strategy does shows in what it takes: wrap policies if it shards, hooks if it averages what is not sharded.
template <class S>
inline constexpr bool shards_v = takes_v<category::wrap, S>;
template <class S>
inline constexpr bool replicates_v = takes_v<category::comm_hook, S> && !shards_v<S>;
template <class S>
inline constexpr OffloadConfig offload_v =
    offload_config_v<plan::policies_t<category::offload, typename OptionsOf<S>::list>>;
template <class S>
inline constexpr bool has_option_of_units_v = has_option_v<category::wrap, S> || has_option_v<category::prefetch, S> ||
                                              has_option_v<category::rate_limit, S>;

// The strategies a strategy is made of: the one inside of it, or those it picks from.
template <class S>
struct PartsOf {
  using type = std::conditional_t<std::is_void_v<inner_of_t<S>>, core::TypeList<>, core::TypeList<inner_of_t<S>>>;
};
template <class S>
  requires core::is_type_list_v<typename S::strategies>
struct PartsOf<S> {
  using type = typename S::strategies;
};
template <class T>
struct IsNoStrategy : std::bool_constant<!is_of_v<T, category::strategy>> {};

// The rules of a strategy S and its options, most basic first. Each is violated by itself; see core/rules.hpp.
#define WEFT_RULE(Name, Condition, Message) WEFT_DETAIL_RULE(Name, S, Condition, Message)
namespace option_rules {

WEFT_RULE(DdpWithModule, (replicates_v<S> && has_v<IsNoPolicy, S>),
          "weft: DDP<Options...> keeps the model whole and takes no modules: write DDP<>, or a hook of your own as "
          "CommHook<Hook>");
WEFT_RULE(ShardWithModule, (shards_v<S> && has_v<IsNoPolicy, S>),
          "weft: FSDP<Mode, Wrap>: write the modules as WrapPolicy<Block>, not as Block");
WEFT_RULE(ModelParallelWithModule, (!replicates_v<S> && !shards_v<S> && has_v<IsNoPolicy, S>),
          "weft: ModelParallel<...>: write the modules as Plan<Block, Colwise<&BlockImpl::w1>, ...>, and a function as "
          "Parallelize<function>");
WEFT_RULE(FabricPolicyInside, (has_untaken_v<SitsBeside, S>),
          "weft: precision, device, backend, launcher, memory policies and strategies do not go into a strategy: write "
          "them beside it, as in Fabric<DDP<>, Bf16>");
WEFT_RULE(
    DdpWithWrap, (replicates_v<S> && has_option_v<category::wrap, S>),
    "weft: DDP<...> wraps the model as a whole: leave WrapPolicy out, or write FSDP<FullShard, WrapPolicy<Block>>");
WEFT_RULE(DdpWithSharding, (replicates_v<S> && has_untaken_v<IsShardOption, S>),
          "weft: DDP<...> shards nothing: leave out the sharding, Prefetch, RateLimit and Offload options, or write "
          "FSDP<...>");
WEFT_RULE(MeshInside, (!topology_of<S>().mesh && has_option_v<category::mesh, S>),
          "weft: DDP<...> and ZeRO<...> treat all ranks alike: leave the mesh out, or write FSDP<HybridShard, "
          "Mesh<Axis<\"replicate\", 2>, Axis<\"shard\", Infer>>> or ModelParallel<...>");
WEFT_RULE(ShardWithDdpOption, (shards_v<S> && has_untaken_v<IsDdpOption, S>),
          "weft: FindUnused, StaticGraph, CommHook, BroadcastBuffers and GradientsInBuckets are options of DDP<...>: "
          "leave them out (FSDP and ZeRO take unused parameters as they come), or write DDP<...>");
WEFT_RULE(ZeroWithSharding, (is_zero_v<S> && has_option_v<category::sharding, S>),
          "weft: ZeRO<stage, ...> shards by its stage: leave the sharding out, or write FSDP<FullShard, ...>");
WEFT_RULE(OptionNotTaken, (has_untaken_v<IsPolicy, S>),
          "weft: this strategy does not take one of its options: write it inside the strategy it belongs to (the table "
          "in strategy/composition.hpp says which)");
WEFT_RULE(
    TwoShardings, (plan::num_policies_v<category::sharding, typename OptionsOf<S>::list> > 1),
    "weft: FSDP<...> has two shardings: keep one of FullShard, ShardGradOp, NoShard, HybridShard, HybridShardGradOp");
WEFT_RULE(OptionTwice, (repeats_v<typename OptionsOf<S>::list>),
          "weft: a strategy has the same kind of option twice: keep one of the two");
WEFT_RULE(MalformedSharding, (has_v<IsMalformedSharding, S>),
          "weft: FSDP<Mode, ...>: a sharding of your own has a value: write static constexpr weft::ShardConfig "
          "config{...} in Mode");
WEFT_RULE(WrappedPolicy, (has_v<WrapsAPolicy, S>),
          "weft: WrapPolicy<Block, ...> names modules: write other policies beside it, not in it");
WEFT_RULE(HookIsNoClass, (has_v<HooksNoClass, S>),
          "weft: CommHook<Hook> names a class: write AllReduce, Bf16Compress, Fp16Compress, PowerSGD<rank>, or a hook "
          "class of your own");
WEFT_RULE(ZeroAmount, (has_v<IsZero, S>),
          "weft: Bucket, Prefetch and RateLimit count from 1: write Bucket<25_MiB> or leave it out; units one at a "
          "time are RateLimit<1>");
WEFT_RULE(FindUnusedInStaticGraph, (has_option_v<category::find_unused, S> && has_option_v<category::static_graph, S>),
          "weft: DDP<FindUnused, StaticGraph>: a static graph finds unused parameters by itself: write "
          "DDP<StaticGraph>, or DDP<FindUnused> if steps differ");
WEFT_RULE(ZeroStage, (is_zero_v<S> && (zero_stage_v<S> < 1 || zero_stage_v<S> > 3)),
          "weft: ZeRO<stage, ...> has the stages 1 (optimizer states), 2 (and gradients), 3 (and parameters): write "
          "one of these, or DDP<> for none");
WEFT_RULE(ZeroKeepsParameters,
          (is_zero_v<S> && zero_stage_v<S> < 3 && (has_option_of_units_v<S> || offload_v<S>.parameters)),
          "weft: ZeRO<1> and ZeRO<2> keep parameters whole: leave out WrapPolicy, Prefetch, RateLimit and "
          "OffloadParams, or write ZeRO<3, ...>");
WEFT_RULE(NvmeOfNothing,
          (takes_v<category::offload, S> && has_option_v<category::offload, S> && offload_v<S> == OffloadConfig{}),
          "weft: Nvme<directory> says where offloaded state goes: write OffloadParams or OffloadOptimizer too");
WEFT_RULE(NoPlanGiven, (NeedsPlan<S> && !has_option_v<category::plan, S>),
          "weft: ModelParallel<...> needs to know what to divide: write Plan<Block, Colwise<&BlockImpl::w1>, ...> or "
          "Parallelize<function> in it");

WEFT_RULE(
    PartIsNoStrategy, (PartsOf<S>::type::template count<IsNoStrategy> != 0),
    "weft: Lazy<Inner> and Auto<...> are made of strategies: write Lazy<FSDP<...>>, and other policies beside it");
WEFT_RULE(AutoOfNothing, (requires { requires S::strategies::size == 0; }),
          "weft: Auto<...> picks from a list: write Auto<DDP<>, FSDP<FullShard, WrapPolicy<Block>>>");

}  // namespace option_rules
#undef WEFT_RULE

struct OptionRules
    : core::RuleTable<option_rules::DdpWithModule, option_rules::ShardWithModule, option_rules::ModelParallelWithModule,
                      option_rules::FabricPolicyInside, option_rules::DdpWithWrap, option_rules::DdpWithSharding,
                      option_rules::MeshInside, option_rules::ShardWithDdpOption, option_rules::ZeroWithSharding,
                      option_rules::OptionNotTaken, option_rules::TwoShardings, option_rules::OptionTwice,
                      option_rules::MalformedSharding, option_rules::WrappedPolicy, option_rules::HookIsNoClass,
                      option_rules::ZeroAmount, option_rules::FindUnusedInStaticGraph, option_rules::ZeroStage,
                      option_rules::ZeroKeepsParameters, option_rules::NvmeOfNothing, option_rules::NoPlanGiven,
                      option_rules::PartIsNoStrategy, option_rules::AutoOfNothing> {};

// The strategies of a list, each before those it is made of.
template <class List>
struct AllParts;
template <class... Strategies>
struct AllParts<core::TypeList<Strategies...>> {
  using type = core::concat_t<
      core::concat_t<core::TypeList<Strategies>, typename AllParts<typename PartsOf<Strategies>::type>::type>...>;
};
template <class S>
struct BreaksOptionRule : std::bool_constant<!OptionRules::holds<S>> {};
// Of S and those it is made of, the first whose options break a rule, which is the one that speaks; void if none does.
template <class S>
struct FirstRefused {
  using type = core::first_or_t<core::filter_t<BreaksOptionRule, typename AllParts<core::TypeList<S>>::type>, void>;
};

}  // namespace weft::strategy
