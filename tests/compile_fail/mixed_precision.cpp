// Which strategies carry out a precision that computes in other numbers than it stores, and what it is made of.
#include <weft/strategy/composition.hpp>

using namespace weft;

struct Block {};
using Sharded = FSDP<FullShard, WrapPolicy<Block>>;
template <class... Policies>
struct Check {
  static_assert(Composition<Policies...>::check());
};

#if defined( \
    CASE_made_of_a_mixed_one)  // expect-error: weft: MixedPrecision<param, reduce, buffer, output> takes Fp64, Fp32, Bf16 or Fp16 in each place
template struct Check<Sharded, MixedPrecision<Bf16Mixed, Fp32>>;
#elif defined( \
    CASE_made_of_a_type)  // expect-error: weft: MixedPrecision<param, reduce, buffer, output> takes Fp64, Fp32, Bf16 or Fp16 in each place
template struct Check<Sharded, MixedPrecision<Bf16, float>>;
#elif defined(CASE_under_ddp)      // expect-error: casts parameters where they are gathered
template struct Check<DDP<>, MixedPrecision<Bf16>>;
#elif defined(CASE_on_one_device)  // expect-error: casts parameters where they are gathered
template struct Check<MixedPrecision<Bf16, Fp32, Bf16, Bf16>>;
#elif defined(CASE_scaled_on_cpu)  // expect-error: weft: Fp16Mixed scales its loss on CUDA devices
template struct Check<Sharded, Fp16Mixed, On<Cpu>>;
#else                              // control
template struct Check<Sharded, MixedPrecision<Bf16, Fp32>>;
template struct Check<MixedPrecision<Bf16, Fp32, Bf16, Bf16>, Sharded, On<Cpu>>;
template struct Check<FSDP<NoShard>, MixedPrecision<Fp16, Fp16>>;
template struct Check<FSDP<HybridShard, Mesh<Axis<"replicate", 2>, Axis<"shard", 2>>>, Bf16Mixed>;
template struct Check<DDP<>, MixedPrecision<Fp32, Bf16>>;  // computes in what it stores
template struct Check<Sharded, Fp64>;
static_assert(Composition<Sharded, Bf16Mixed>::precision_config.autocast_inputs);
static_assert(!Composition<DDP<>, Bf16Mixed>::precision_config.autocast_inputs);
#endif
