// What estimate<...> is asked of.
#include <weft/estimates/estimate.hpp>

using namespace weft;

struct Block {};
constexpr ModelShape model() { return {.units = {{.parameters = {{1024}}}, {.parent = 0, .parameters = {{4096}}}}}; }

#if defined(CASE_strategy)  // expect-error: weft: estimate<...> knows SingleDevice, DDP, FSDP and ZeRO
constexpr auto found = estimate<DataParallel>(model());
#elif defined(CASE_no_policy)  // expect-error: weft: Fabric<Policies...> is made of policies
constexpr auto found = estimate<Block>(model(), 2);
#elif defined( \
    CASE_hook)  // expect-error: weft: estimate<DDP<CommHook<...>>> knows what AllReduce, Bf16Compress and Fp16Compress send
constexpr auto found = estimate<DDP<CommHook<PowerSGD<>>>>(model(), 2);
#elif defined( \
    CASE_hybrid_without_mesh)  // expect-error: weft: HybridShard shards within groups of ranks and needs to know them
constexpr auto found = estimate<FSDP<HybridShard, WrapPolicy<Block>>>(model(), 4);
#else                          // control
static_assert(estimate<Fabric<FSDP<FullShard, WrapPolicy<Block>>>>(model(), 2).peak_bytes < 1_MiB);
static_assert(estimate<FSDP<HybridShard, WrapPolicy<Block>>, Mesh<Axis<"replicate", 2>, Axis<"shard", 2>>>(model())
                  .sent_bytes != 0);
static_assert(estimate<DDP<CommHook<Bf16Compress>>>(model(), 2).all_reduce.count == 1);
static_assert(estimate<SingleDevice>(model()).sent_bytes == 0);
static_assert(estimate<Fabric<FSDP<FullShard, WrapPolicy<Block>>, Bf16>>(model(), 2).parameter_bytes == 5120);
#endif
