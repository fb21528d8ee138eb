// What FSDP<...> and ZeRO<...> take.
#include <weft/strategy/composition.hpp>

using namespace weft;

struct Block {};
struct OwnMode {
  static constexpr ShardConfig config{.reshard_after_forward = false};
};
template <class... Policies>
struct Check {
  static_assert(Composition<Policies...>::check());
};

#if defined( \
    CASE_block_instead_of_wrap)  // expect-error: weft: FSDP<Mode, Wrap>: write the modules as WrapPolicy<Block>, not as Block
template struct Check<FSDP<FullShard, Block>>;
#elif defined(CASE_block_in_zero)  // expect-error: write the modules as WrapPolicy<Block>, not as Block
template struct Check<ZeRO<3, Block>>;
#elif defined( \
    CASE_policy_in_wrap)  // expect-error: weft: WrapPolicy<Block, ...> names modules: write other policies beside it
template struct Check<FSDP<FullShard, WrapPolicy<Block, Prefetch<2>>>>;
#elif defined( \
    CASE_two_shardings)  // expect-error: weft: FSDP<...> has two shardings: keep one of FullShard, ShardGradOp
template struct Check<FSDP<FullShard, WrapPolicy<Block>, ShardGradOp>>;
#elif defined(CASE_two_shardings_one_own)  // expect-error: weft: FSDP<...> has two shardings
template struct Check<FSDP<FullShard, OwnMode>>;
#elif defined(CASE_prefetch_twice)         // expect-error: weft: a strategy has the same kind of option twice
template struct Check<FSDP<Prefetch<1>, Prefetch<2>>>;
#elif defined(CASE_find_unused)   // expect-error: leave them out (FSDP and ZeRO take unused parameters as they come)
template struct Check<FSDP<FullShard, FindUnused>>;
#elif defined(CASE_static_graph)  // expect-error: are options of DDP<...>: leave them out
template struct Check<FSDP<StaticGraph>>;
#elif defined(CASE_comm_hook)     // expect-error: are options of DDP<...>: leave them out
template struct Check<FSDP<CommHook<Bf16Compress>>>;
#elif defined(CASE_precision_inside)       // expect-error: write them beside it, as in Fabric<DDP<>, Bf16>
template struct Check<FSDP<FullShard, Bf16>>;
#elif defined(CASE_checkpointing_inside)   // expect-error: write them beside it, as in Fabric<DDP<>, Bf16>
template struct Check<FSDP<FullShard, ActivationCheckpointing<Block>>>;
#elif defined(CASE_no_prefetch)            // expect-error: units one at a time are RateLimit<1>
template struct Check<FSDP<Prefetch<0>>>;
#elif defined(CASE_no_units)               // expect-error: units one at a time are RateLimit<1>
template struct Check<FSDP<RateLimit<0>>>;
#elif defined(CASE_empty_bucket)           // expect-error: count from 1: write Bucket<25_MiB> or leave it out
template struct Check<FSDP<Bucket<0>>>;
#elif defined(CASE_nvme_of_nothing)        // expect-error: write OffloadParams or OffloadOptimizer too
template struct Check<FSDP<Nvme<"/scratch">>>;
#elif defined(CASE_mode_without_value)     // expect-error: write static constexpr weft::ShardConfig config{...} in Mode
struct Valueless {
  using category = weft::category::sharding;
};
template struct Check<FSDP<Valueless>>;
#elif defined(CASE_zero_stage)             // expect-error: weft: ZeRO<stage, ...> has the stages 1
template struct Check<ZeRO<4>>;
#elif defined(CASE_zero_stage_0)           // expect-error: or DDP<> for none
template struct Check<ZeRO<0>>;
#elif defined(CASE_zero_2_wrap)            // expect-error: weft: ZeRO<1> and ZeRO<2> keep parameters whole
template struct Check<ZeRO<2, WrapPolicy<Block>>>;
#elif defined(CASE_zero_1_offload_params)  // expect-error: weft: ZeRO<1> and ZeRO<2> keep parameters whole
template struct Check<ZeRO<1, OffloadParams>>;
#elif defined(CASE_zero_sharding)          // expect-error: weft: ZeRO<stage, ...> shards by its stage
template struct Check<ZeRO<3, FullShard>>;
#elif defined(CASE_lazy_of_no_strategy)    // expect-error: are made of strategies: write Lazy<FSDP<...>>
template struct Check<Lazy<Bf16>>;
#elif defined(CASE_lazy_of_wrong_fsdp)     // expect-error: write the modules as WrapPolicy<Block>, not as Block
template struct Check<Lazy<FSDP<FullShard, Block>>>;
#elif defined(CASE_auto_of_wrong_ddp)      // expect-error: weft: DDP<...> shards nothing
template struct Check<Auto<FSDP<>, DDP<FullShard>>>;
#elif defined(CASE_auto_of_nothing)        // expect-error: weft: Auto<...> picks from a list
template struct Check<Auto<>>;
#else                                      // control
template struct Check<FSDP<>>;
template struct Check<FSDP<OwnMode, WrapPolicy<Block>>>;
template struct Check<FSDP<RateLimit<1>, WrapPolicy<Block>, SizeBased<1000>, Bucket<4_MiB>, ShardGradOp, Prefetch<2>>>;
template struct Check<FSDP<OffloadParams, Nvme<"/scratch">>, ActivationCheckpointing<Block>, Bf16>;
template struct Check<ZeRO<1>>;
template struct Check<ZeRO<2, OffloadOptimizer, Bucket<16_MiB>>, Fp16Mixed>;
template struct Check<ZeRO<3, WrapPolicy<Block>, OffloadParams>>;
template struct Check<Lazy<FSDP<FullShard, WrapPolicy<Block>>>>;
template struct Check<Auto<DDP<>, FSDP<>>>;
template struct Check<DeepSpeed<R"({"zero_optimization": {"stage": 2}})">>;
#endif
