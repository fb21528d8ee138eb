// strategy/strategy_options.hpp -- what may stand inside a strategy.
// In: a strategy with its options. Out: whether they fit, or one sentence that says what to write.
#pragma once

#include <weft/strategy/ddp.hpp>
#include <weft/strategy/derived.hpp>
#include <weft/strategy/fsdp.hpp>
#include <weft/strategy/model_parallel.hpp>
#include <weft/strategy/rules.hpp>
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
struct IsNoPolicy : std::bool_constant<!Policy<T>> {};
template <class T>
struct IsShardOption : std::bool_constant<is_of_v<T, category::sharding> || is_of_v<T, category::offload> ||
                                          is_of_v<T, category::prefetch> || is_of_v<T, category::rate_limit> ||
                                          is_of_v<T, category::ignore> || is_of_v<T, category::accumulation>> {};
template <class T>
struct IsDdpOption : std::bool_constant<is_of_v<T, category::comm_hook> || is_of_v<T, category::find_unused> ||
                                        is_of_v<T, category::static_graph> || is_of_v<T, category::broadcast_buffers> ||
                                        is_of_v<T, category::gradients_in_buckets>> {};
template <class Takes>
struct NotTaken {
  template <class T>
  using any = std::bool_constant<Policy<T> && !Takes::template contains<category_of_t<T>>>;
  template <class T>  // policies whose place is Fabric<...> alone
  using beside = std::bool_constant<any<T>::value && sits_in_fabric_v<T> && !sits_in_strategy_v<T>>;
};
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
// The strategies a strategy is made of.
template <class S>
struct PartsOf {
  using type = core::TypeList<>;
};
template <class S>
  requires requires { typename S::inner; }
struct PartsOf<S> {
  using type = core::TypeList<typename S::inner>;
};
template <class... Strategies>
struct PartsOf<Auto<Strategies...>> {
  using type = core::TypeList<Strategies...>;
};
template <class T>
struct IsNoStrategy : std::bool_constant<!is_of_v<T, category::strategy>> {};

// The rules, most basic first. Each is violated by itself; see strategy/rules.hpp.
namespace option_rules {

template <class S, bool Asserting>
struct DdpWithModule {
  static constexpr bool violated = is_ddp_v<S> && has_v<IsNoPolicy, S>;
  static_assert(!(Asserting && violated),
                "weft: DDP<Options...> keeps the model whole and takes no modules: write DDP<>, or a hook of your own "
                "as CommHook<Hook>");
};
template <class S, bool Asserting>
struct ShardWithModule {
  static constexpr bool violated = (is_fsdp_v<S> || is_zero_v<S>) && has_v<IsNoPolicy, S>;
  static_assert(!(Asserting && violated),
                "weft: FSDP<Mode, Wrap>: write the modules as WrapPolicy<Block>, not as Block");
};
template <class S, bool Asserting>
struct ModelParallelWithModule {
  static constexpr bool violated = !is_ddp_v<S> && !is_fsdp_v<S> && !is_zero_v<S> && has_v<IsNoPolicy, S>;
  static_assert(!(Asserting && violated),
                "weft: ModelParallel<...>: write the modules as Plan<Block, Colwise<&BlockImpl::w1>, ...>, and a "
                "function as Parallelize<function>");
};
template <class S, bool Asserting>
struct FabricPolicyInside {
  static constexpr bool violated = has_v<NotTaken<typename OptionsOf<S>::takes>::template beside, S>;
  static_assert(!(Asserting && violated),
                "weft: precision, device, backend, launcher, memory policies and strategies do not go into a strategy: "
                "write them beside it, as in Fabric<DDP<>, Bf16>");
};
template <class S, bool Asserting>
struct DdpWithWrap {
  static constexpr bool violated = is_ddp_v<S> && has_option_v<category::wrap, S>;
  static_assert(!(Asserting && violated),
                "weft: DDP<...> wraps the model as a whole: leave WrapPolicy out, or write "
                "FSDP<FullShard, WrapPolicy<Block>>");
};
template <class S, bool Asserting>
struct DdpWithSharding {
  static constexpr bool violated = is_ddp_v<S> && has_v<IsShardOption, S>;
  static_assert(!(Asserting && violated),
                "weft: DDP<...> shards nothing: leave out the sharding, Prefetch, RateLimit and Offload options, or "
                "write FSDP<...>");
};
template <class S, bool Asserting>
struct MeshInside {
  static constexpr bool violated = (is_ddp_v<S> || is_zero_v<S>) && has_option_v<category::mesh, S>;
  static_assert(!(Asserting && violated),
                "weft: DDP<...> and ZeRO<...> treat all ranks alike: leave the mesh out, or write "
                "FSDP<HybridShard, Mesh<Axis<\"replicate\", 2>, Axis<\"shard\", Infer>>> or ModelParallel<...>");
};
template <class S, bool Asserting>
struct ShardWithDdpOption {
  static constexpr bool violated = (is_fsdp_v<S> || is_zero_v<S>) && has_v<IsDdpOption, S>;
  static_assert(!(Asserting && violated),
                "weft: FindUnused, StaticGraph, CommHook, BroadcastBuffers and GradientsInBuckets are options of "
                "DDP<...>: leave them out (FSDP and ZeRO take unused parameters as they come), or write DDP<...>");
};
template <class S, bool Asserting>
struct ZeroWithSharding {
  static constexpr bool violated = is_zero_v<S> && has_option_v<category::sharding, S>;
  static_assert(!(Asserting && violated),
                "weft: ZeRO<stage, ...> shards by its stage: leave the sharding out, or write FSDP<FullShard, ...>");
};
template <class S, bool Asserting>
struct OptionNotTaken {
  static constexpr bool violated = has_v<NotTaken<typename OptionsOf<S>::takes>::template any, S>;
  static_assert(!(Asserting && violated),
                "weft: this strategy does not take one of its options: write it inside the strategy it belongs to (the "
                "table in strategy/composition.hpp says which)");
};
template <class S, bool Asserting>
struct TwoShardings {
  static constexpr bool violated = plan::num_policies_v<category::sharding, typename OptionsOf<S>::list> > 1;
  static_assert(!(Asserting && violated),
                "weft: FSDP<...> has two shardings: keep one of FullShard, ShardGradOp, NoShard, HybridShard, "
                "HybridShardGradOp");
};
template <class S, bool Asserting>
struct OptionTwice {
  static constexpr bool violated = repeats_v<typename OptionsOf<S>::list>;
  static_assert(!(Asserting && violated), "weft: a strategy has the same kind of option twice: keep one of the two");
};
template <class S, bool Asserting>
struct MalformedSharding {
  static constexpr bool violated = has_v<IsMalformedSharding, S>;
  static_assert(!(Asserting && violated),
                "weft: FSDP<Mode, ...>: a sharding of your own has a value: write "
                "static constexpr weft::ShardConfig config{...} in Mode");
};
template <class S, bool Asserting>
struct WrappedPolicy {
  static constexpr bool violated = has_v<WrapsAPolicy, S>;
  static_assert(!(Asserting && violated),
                "weft: WrapPolicy<Block, ...> names modules: write other policies beside it, not in it");
};
template <class S, bool Asserting>
struct HookIsNoClass {
  static constexpr bool violated = has_v<HooksNoClass, S>;
  static_assert(!(Asserting && violated),
                "weft: CommHook<Hook> names a class: write AllReduce, Bf16Compress, Fp16Compress, PowerSGD<rank>, or a "
                "hook class of your own");
};
template <class S, bool Asserting>
struct ZeroAmount {
  static constexpr bool violated = has_v<IsZero, S>;
  static_assert(!(Asserting && violated),
                "weft: Bucket, Prefetch and RateLimit count from 1: write Bucket<25_MiB> or leave it out; units one at "
                "a time are RateLimit<1>");
};
template <class S, bool Asserting>
struct FindUnusedInStaticGraph {
  static constexpr bool violated = has_option_v<category::find_unused, S> && has_option_v<category::static_graph, S>;
  static_assert(!(Asserting && violated),
                "weft: DDP<FindUnused, StaticGraph>: a static graph finds unused parameters by itself: write "
                "DDP<StaticGraph>, or DDP<FindUnused> if steps differ");
};
template <class S, bool Asserting>
struct ZeroStage {
  static constexpr bool violated = is_zero_v<S> && (zero_stage_v<S> < 1 || zero_stage_v<S> > 3);
  static_assert(!(Asserting && violated),
                "weft: ZeRO<stage, ...> has the stages 1 (optimizer states), 2 (and gradients), 3 (and parameters): "
                "write one of these, or DDP<> for none");
};
template <class S, bool Asserting>
struct ZeroKeepsParameters {
  static constexpr bool violated = [] {
    if constexpr (is_zero_v<S> && zero_stage_v<S> < 3)
      return has_option_v<category::wrap, S> || has_option_v<category::prefetch, S> ||
             has_option_v<category::rate_limit, S> || S::config.offload.parameters;
    else
      return false;
  }();
  static_assert(!(Asserting && violated),
                "weft: ZeRO<1> and ZeRO<2> keep parameters whole: leave out WrapPolicy, Prefetch, RateLimit and "
                "OffloadParams, or write ZeRO<3, ...>");
};
template <class S, bool Asserting>
struct NvmeOfNothing {
  static constexpr bool violated = [] {
    if constexpr (has_option_v<category::offload, S> && (is_fsdp_v<S> || is_zero_v<S>))
      return S::config.offload == OffloadConfig{};
    else
      return false;
  }();
  static_assert(!(Asserting && violated),
                "weft: Nvme<directory> says where offloaded state goes: write OffloadParams or OffloadOptimizer too");
};
template <class S, bool Asserting>
struct NoPlanGiven {
  static constexpr bool violated = is_model_parallel_v<S> && !has_option_v<category::plan, S>;
  static_assert(!(Asserting && violated),
                "weft: ModelParallel<...> needs to know what to divide: write Plan<Block, Colwise<&BlockImpl::w1>, "
                "...> or Parallelize<function> in it");
};

template <class S, bool Asserting>
struct PartIsNoStrategy {
  static constexpr bool violated = PartsOf<S>::type::template count<IsNoStrategy> != 0;
  static_assert(!(Asserting && violated),
                "weft: Lazy<Inner> and Auto<...> are made of strategies: write Lazy<FSDP<...>>, and other policies "
                "beside it");
};
template <class S, bool Asserting>
struct AutoOfNothing {
  static constexpr bool violated = std::is_same_v<S, Auto<>>;
  static_assert(!(Asserting && violated),
                "weft: Auto<...> picks from a list: write Auto<DDP<>, FSDP<FullShard, WrapPolicy<Block>>>");
};

}  // namespace option_rules

struct OptionRules
    : RuleTable<option_rules::DdpWithModule, option_rules::ShardWithModule, option_rules::ModelParallelWithModule,
                option_rules::FabricPolicyInside, option_rules::DdpWithWrap, option_rules::DdpWithSharding,
                option_rules::MeshInside, option_rules::ShardWithDdpOption, option_rules::ZeroWithSharding,
                option_rules::OptionNotTaken, option_rules::TwoShardings, option_rules::OptionTwice,
                option_rules::MalformedSharding, option_rules::WrappedPolicy, option_rules::HookIsNoClass,
                option_rules::ZeroAmount, option_rules::FindUnusedInStaticGraph, option_rules::ZeroStage,
                option_rules::ZeroKeepsParameters, option_rules::NvmeOfNothing, option_rules::NoPlanGiven,
                option_rules::PartIsNoStrategy, option_rules::AutoOfNothing> {};

// The strategy and those it is made of; the first that breaks a rule is the one that speaks.
template <class S>
constexpr bool options_hold();
template <class... Parts>
constexpr bool parts_hold(core::TypeList<Parts...>) {
  return (options_hold<Parts>() && ...);
}
template <class S>
constexpr bool options_hold() {
  return OptionRules::holds<S> && parts_hold(typename PartsOf<S>::type{});
}

template <class S>
consteval bool check_options();
template <class... Parts>
consteval bool check_parts(core::TypeList<Parts...>) {
  return (true && ... && check_options<Parts>());
}
template <class S>
consteval bool check_options() {
  if constexpr (OptionRules::holds<S>)
    return check_parts(typename PartsOf<S>::type{});
  else
    return core::Reported<Violation<OptionRules, S>>;
}

}  // namespace weft::strategy
