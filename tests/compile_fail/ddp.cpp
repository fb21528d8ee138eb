// What DDP<...> takes.
#include <weft/strategy/composition.hpp>

using namespace weft;

struct Block {};
template <class... Policies>
struct Check {
  static_assert(Composition<Policies...>::check());
};

#if defined(CASE_block)  // expect-error: weft: DDP<Options...> keeps the model whole and takes no modules
template struct Check<DDP<Block>>;
#elif defined(CASE_bare_hook)   // expect-error: a hook of your own as CommHook<Hook>
template struct Check<DDP<Bf16Compress>>;
#elif defined(CASE_wrap)        // expect-error: weft: DDP<...> wraps the model as a whole: leave WrapPolicy out
template struct Check<DDP<WrapPolicy<Block>>>;
#elif defined(CASE_sharding)    // expect-error: weft: DDP<...> shards nothing
template struct Check<DDP<FullShard>>;
#elif defined(CASE_prefetch)    // expect-error: weft: DDP<...> shards nothing
template struct Check<DDP<Prefetch<2>>>;
#elif defined(CASE_rate_limit)  // expect-error: weft: DDP<...> shards nothing
template struct Check<DDP<RateLimit<2>>>;
#elif defined(CASE_offload)     // expect-error: weft: DDP<...> shards nothing
template struct Check<DDP<FindUnused, OffloadParams>>;
#elif defined(CASE_mesh)        // expect-error: weft: DDP<...> and ZeRO<...> treat all ranks alike: leave the mesh out
template struct Check<DDP<Mesh<Axis<"data_parallel", 2>>>>;
#elif defined(CASE_precision_inside)      // expect-error: write them beside it, as in Fabric<DDP<>, Bf16>
template struct Check<DDP<Bf16>>;
#elif defined(CASE_checkpointing_inside)  // expect-error: write them beside it, as in Fabric<DDP<>, Bf16>
template struct Check<DDP<ActivationCheckpointing<Block>>>;
#elif defined(CASE_strategy_inside)       // expect-error: write them beside it, as in Fabric<DDP<>, Bf16>
template struct Check<DDP<FSDP<>>>;
#elif defined(CASE_plan_inside)           // expect-error: weft: this strategy does not take one of its options
template struct Check<DDP<Plan<Block>>>;
#elif defined( \
    CASE_bucket_twice)  // expect-error: weft: a strategy has the same kind of option twice: keep one of the two
template struct Check<DDP<Bucket<1_MiB>, FindUnused, Bucket<2_MiB>>>;
#elif defined( \
    CASE_find_unused_twice)    // expect-error: weft: a strategy has the same kind of option twice: keep one of the two
template struct Check<DDP<FindUnused, FindUnused>>;
#elif defined(CASE_two_hooks)  // expect-error: weft: a strategy has the same kind of option twice: keep one of the two
template struct Check<DDP<CommHook<Bf16Compress>, CommHook<AllReduce>>>;
#elif defined(CASE_find_unused_in_static_graph)  // expect-error: a static graph finds unused parameters by itself
template struct Check<DDP<FindUnused, StaticGraph>>;
#elif defined(CASE_empty_bucket)                 // expect-error: count from 1: write Bucket<25_MiB> or leave it out
template struct Check<DDP<Bucket<0>>>;
#elif defined(CASE_empty_first_bucket)           // expect-error: count from 1: write Bucket<25_MiB> or leave it out
template struct Check<DDP<Bucket<1_MiB, 0>>>;
#elif defined(CASE_hook_is_no_class)             // expect-error: weft: CommHook<Hook> names a class
template struct Check<DDP<CommHook<int>>>;
#else                                            // control
struct OwnHook {};
template struct Check<DDP<>>;
template struct Check<DDP<Bucket<25_MiB>, CommHook<PowerSGD<2>>, FindUnused, BroadcastBuffers<false>>>;
template struct Check<DDP<GradientsInBuckets<false>, StaticGraph, CommHook<OwnHook>, Bucket<4_MiB, 1_MiB>>, Bf16>;
template struct Check<DDP<>, ActivationCheckpointing<Block>>;
#endif
