// What may stand together in Fabric<...>; asked of Composition, which needs no torch.
#include <weft/strategy/composition.hpp>

using namespace weft;

struct Block {};
struct OtherBlock {};
template <Number Stored>
struct HalfPrecision {  // a user's own
  using category = weft::category::precision;
  static constexpr std::string_view name = "HalfPrecision";
  static constexpr PrecisionConfig config{
      .stored = Stored, .computed = Number::fp16, .autocast = true, .loss_scaling = true};
};
template <class... Policies>
struct Check {
  static_assert(Composition<Policies...>::check());
};

#if defined( \
    CASE_not_a_policy)  // expect-error: weft: Fabric<Policies...> is made of policies: write modules as WrapPolicy<Block> inside FSDP<...>
template struct Check<FSDP<FullShard>, Block>;
#elif defined(CASE_not_a_policy_number)  // expect-error: weft: Fabric<Policies...> is made of policies
template struct Check<DDP<>, int>;
#elif defined( \
    CASE_sharding_beside)  // expect-error: stand inside of their strategy: write FSDP<FullShard, WrapPolicy<Block>, ...>
template struct Check<FSDP<>, ShardGradOp>;
#elif defined( \
    CASE_wrap_beside)  // expect-error: stand inside of their strategy: write FSDP<FullShard, WrapPolicy<Block>, ...>
template struct Check<FSDP<FullShard>, WrapPolicy<Block>>;
#elif defined(CASE_ddp_option_beside)    // expect-error: stand inside of their strategy: write DDP<FindUnused, ...>
template struct Check<DDP<>, FindUnused>;
#elif defined(CASE_plan_beside)          // expect-error: weft: Plan and Parallelize stand inside of their strategy
template struct Check<ModelParallel<>, Plan<Block>>;
#elif defined(CASE_two_strategies)       // expect-error: weft: Fabric<...> has two strategies: keep one
template struct Check<DDP<>, Bf16, FSDP<>>;
#elif defined(CASE_same_strategy_twice)  // expect-error: weft: Fabric<...> has two strategies: keep one
template struct Check<DDP<>, DDP<>>;
#elif defined(CASE_two_precisions)       // expect-error: weft: Fabric<...> has two precisions: keep one
template struct Check<Bf16, DDP<>, Fp32>;
#elif defined(CASE_two_devices)          // expect-error: weft: Fabric<...> has two devices: keep On<Cpu> or On<Cuda>
template struct Check<On<Cpu>, On<Cuda>>;
#elif defined(CASE_two_backends)         // expect-error: weft: Fabric<...> has two backends: keep one
template struct Check<DDP<>, Gloo, Nccl>;
#elif defined( \
    CASE_two_launchers)  // expect-error: weft: Fabric<...> has two launchers: keep one of Fork, Popen, Environment
template struct Check<DDP<>, Fork, Popen>;
#elif defined(CASE_two_mistakes)  // expect-error: weft: Fabric<...> has two strategies: keep one
template struct Check<DDP<>, DDP<>, Nccl, On<Cpu>, Fp32, Bf16>;
#elif defined( \
    CASE_launcher_of_one_process)        // expect-error: are one process and start no others: leave the launcher out
template struct Check<SingleDevice, Fork>;
#elif defined(CASE_launcher_of_default)  // expect-error: are one process and start no others: leave the launcher out
template struct Check<Popen>;
#elif defined( \
    CASE_launcher_of_data_parallel)         // expect-error: are one process and start no others: leave the launcher out
template struct Check<DataParallel, Environment>;
#elif defined(CASE_backend_of_one_process)  // expect-error: send nothing between processes: leave the backend out
template struct Check<SingleDevice, Gloo>;
#elif defined(CASE_nccl_on_cpu)  // expect-error: weft: Nccl moves data between CUDA devices: with On<Cpu> write Gloo
template struct Check<DDP<>, Nccl, On<Cpu>>;
#elif defined( \
    CASE_nccl_direct_on_cpu)  // expect-error: weft: Nccl moves data between CUDA devices: with On<Cpu> write Gloo
template struct Check<DDP<>, NcclDirect, On<Cpu>>;
#elif defined(CASE_backend_of_data_parallel)  // expect-error: send nothing between processes: leave the backend out
template struct Check<DataParallel, Nccl, On<Cuda>>;
#elif defined(CASE_loss_scaling_on_cpu)       // expect-error: with On<Cpu> write Bf16Mixed
template struct Check<DDP<>, Fp16Mixed, On<Cpu>>;
#elif defined(CASE_own_loss_scaling_on_cpu)   // expect-error: with On<Cpu> write Bf16Mixed
template struct Check<HalfPrecision<Number::fp32>, On<Cpu>>;
#elif defined( \
    CASE_scaling_of_fp16_parameters)  // expect-error: weft: gradients of fp16 cannot be unscaled, and have the dtype of their parameters: write .stored = Number::fp32
template struct Check<DDP<>, HalfPrecision<Number::fp16>>;
#elif defined( \
    CASE_mixed_precision_on_one_device)  // expect-error: casts parameters where they are gathered: with SingleDevice, DDP and DataParallel write Bf16Mixed
template struct Check<MixedPrecision<Bf16>>;
#elif defined( \
    CASE_mixed_precision_with_ddp)  // expect-error: casts parameters where they are gathered: with SingleDevice, DDP and DataParallel write Bf16Mixed
template struct Check<DDP<>, MixedPrecision<Bf16, Fp32>>;
#elif defined( \
    CASE_two_recomputations)  // expect-error: weft: Fabric<...> has two ActivationCheckpointing policies: write all blocks into one, as in ActivationCheckpointing<EncoderLayer, DecoderLayer>
template struct Check<DDP<>, ActivationCheckpointing<Block>, ActivationCheckpointing<OtherBlock>>;
#elif defined( \
    CASE_same_recomputation_twice)  // expect-error: weft: Fabric<...> has two ActivationCheckpointing policies
template struct Check<ActivationCheckpointing<Block>, ActivationCheckpointing<Block>>;
#elif defined( \
    CASE_two_offloads)  // expect-error: weft: Fabric<...> has two OffloadActivations policies: write all blocks into one
template struct Check<OffloadActivations<Block>, DDP<>, OffloadActivations<OtherBlock>>;
#elif defined( \
    CASE_recomputation_of_nothing)  // expect-error: weft: ActivationCheckpointing<> and OffloadActivations<> name no block: write the units whose activations they mean
template struct Check<DDP<>, ActivationCheckpointing<>>;
#elif defined( \
    CASE_offload_of_nothing)     // expect-error: weft: ActivationCheckpointing<> and OffloadActivations<> name no block
template struct Check<OffloadActivations<>>;
#elif defined(CASE_block_twice)  // expect-error: names a block twice: once is enough
template struct Check<ActivationCheckpointing<Block, OtherBlock, Block>>;
#elif defined( \
    CASE_recomputation_of_a_policy)  // expect-error: weft: ActivationCheckpointing<Block> and OffloadActivations<Block> take modules, not policies
template struct Check<FSDP<FullShard, WrapPolicy<Block>>, ActivationCheckpointing<WrapPolicy<Block>>>;
#else                                // control: order is free, what is left out has a default, unions are unions
template struct Check<>;
template struct Check<FSDP<FullShard, WrapPolicy<Block>>, Bf16>;
template struct Check<FSDP<FullShard, WrapPolicy<Block>>, MixedPrecision<Bf16>>;
template struct Check<DDP<>, MixedPrecision<Fp32, Bf16>>;
template struct Check<HalfPrecision<Number::fp32>, DDP<>>;
template struct Check<DDP<>, Fp16Mixed>;
template struct Check<Bf16, FSDP<FullShard, WrapPolicy<Block>>>;
template struct Check<On<Cpu>, Gloo, DDP<FindUnused>, Fork, Fp32, ActivationCheckpointing<Block>>;
template struct Check<ActivationCheckpointing<Block, OtherBlock>, OffloadActivations<Block>>;
template struct Check<FSDP<FullShard, WrapPolicy<Block>>, OffloadActivations<OtherBlock>,
                      ActivationCheckpointing<Block>>;
template struct Check<FSDP<>, Gloo, On<Cuda>>;
template struct Check<ModelParallel<Plan<Block>, Mesh<Axis<"tensor_parallel">>>, Popen>;
template struct Check<DDP<>, Nccl, On<Cuda>>;
template struct Check<DDP<>, NcclDirect>;
template struct Check<DataParallel, On<Cuda>, ActivationCheckpointing<Block>>;
template struct Check<DataParallel, On<Cpu>>;
template struct Check<DDP<>, Bf16Mixed, On<Cpu>>;
#endif
