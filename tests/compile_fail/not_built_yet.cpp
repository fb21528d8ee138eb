// Strategies and precisions that parse before their mechanism is there, or is included. A case goes when its mechanism
// comes.
#include <weft/strategy/mechanism.hpp>

using namespace weft;

struct Block {};

#if defined( \
    CASE_fsdp_not_included)  // expect-error: weft: FSDP<...> needs its mechanism: include <weft/shard/fsdp.hpp> or <weft/weft.hpp>
static_assert(assert_mechanism<FSDP<FullShard, WrapPolicy<Block>>>());
#elif defined( \
    CASE_data_parallel_not_included)  // expect-error: weft: DataParallel needs its mechanism: include <weft/data_parallel/data_parallel.hpp>
static_assert(assert_mechanism<DataParallel>());
#elif defined(CASE_zero)            // expect-error: weft: ZeRO<...> parses, but its mechanism is not built yet
static_assert(assert_mechanism<ZeRO<2>>());
#elif defined(CASE_model_parallel)  // expect-error: weft: ModelParallel<...> parses, but its mechanism is not built yet
static_assert(assert_mechanism<ModelParallel<Plan<Block>>>());
#elif defined(CASE_lazy)            // expect-error: weft: this strategy parses, but its mechanism is not built yet
static_assert(assert_mechanism<Lazy<DDP<>>>());
#elif defined( \
    CASE_precision_not_included)  // expect-error: weft: a precision needs its mechanism: include <weft/precision/rules.hpp> or <weft/weft.hpp>
static_assert(assert_mechanism<Bf16>());
#else                             // control
static_assert(Composition<FSDP<FullShard, WrapPolicy<Block>>, Bf16>::check());
#endif
