// torch
// What ActivationCheckpointing<...> and OffloadActivations<...> say about blocks, beside every strategy.
#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

struct PlainImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor const& x) { return x; }
};
TORCH_MODULE(Plain);
struct BlockImpl : PlainImpl {
  torch::Tensor forward(torch::Tensor const& x) { return x; }
};
WEFT_MODULE(Block);

using namespace weft;

template <class... Policies>
void use() {
  static_cast<void>(Fabric<Policies..., On<Cpu>>::launch([](auto& fabric) { fabric.setup(Block()); }));
}

void program() {
#if defined( \
    CASE_plain_block)  // expect-error: weft: ActivationCheckpointing<Block>: Block is not a unit: declare it with WEFT_MODULE(Block) instead of TORCH_MODULE(Block), take the layer of weft::nn, or call weft::checkpoint(f, x) in forward
  use<ActivationCheckpointing<Plain>>();
#elif defined(CASE_layer_of_torch)  // expect-error: weft: ActivationCheckpointing<Block>: Block is not a unit
  use<DDP<>, ActivationCheckpointing<Block, torch::nn::Linear>>();
#elif defined( \
    CASE_no_module)  // expect-error: weft: ActivationCheckpointing<Block>: Block is no module: write a module holder, or the class it holds
  use<ActivationCheckpointing<std::string>>();
#elif defined( \
    CASE_offload_plain_block)  // expect-error: weft: OffloadActivations<Block>: Block is not a unit: declare it with WEFT_MODULE(Block)
  use<FSDP<FullShard, WrapPolicy<Block>>, OffloadActivations<Plain>>();
#elif defined(CASE_offload_no_module)  // expect-error: weft: OffloadActivations<Block>: Block is no module
  use<OffloadActivations<int>>();
#elif defined( \
    CASE_store_without_policy)  // expect-error: weft: offload_activations_to: this Fabric keeps its activations where they are: write Fabric<..., OffloadActivations<Block>>
  static_cast<void>(Fabric<ActivationCheckpointing<Block>, On<Cpu>>::launch(
      [](auto& fabric) { fabric.offload_activations_to(std::make_shared<activation::HostMemory>()); }));
#else                           // control
  use<ActivationCheckpointing<Block>>();
  use<DDP<>, ActivationCheckpointing<BlockImpl, weft::nn::Linear>, OffloadActivations<Block>>();
  static_cast<void>(Fabric<OffloadActivations<Block>, On<Cpu>>::launch(
      [](auto& fabric) { fabric.offload_activations_to(std::make_shared<activation::HostMemory>()); }));
#endif
}
