// torch
// What the mechanism of FSDP<...> says about blocks and functions.
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

struct GradientsOnly {
  static constexpr ShardConfig config{.shard_parameters = false};
};

bool by_module(torch::nn::Module&) { return true; }
bool by_module_and_path(torch::nn::Module&, std::string const&) { return true; }
bool by_tensor(at::Tensor const&) { return true; }
bool by_name_and_tensor(std::string const&, at::Tensor const&) { return true; }

template <class... Options>
void use() {
  static_cast<void>(Fabric<FSDP<Options...>, On<Cpu>>::launch([](auto& fabric) { fabric.setup(Block()); }));
}

void program() {
#if defined( \
    CASE_plain_block)  // expect-error: weft: WrapPolicy<Block>: Block is not a unit: declare it with WEFT_MODULE(Block) instead of TORCH_MODULE(Block), or take the layer of weft::nn
  use<FullShard, WrapPolicy<Plain>>();
#elif defined(CASE_layer_of_torch)  // expect-error: weft: WrapPolicy<Block>: Block is not a unit
  use<FullShard, WrapPolicy<Block, torch::nn::Linear>>();
#elif defined( \
    CASE_no_module)  // expect-error: weft: WrapPolicy<Block>: Block is no module: write a module holder, or the class it holds
  use<FullShard, WrapPolicy<std::string>>();
#elif defined( \
    CASE_wrap_if_signature)  // expect-error: weft: WrapIf<function>: write bool function(torch::nn::Module& module, std::string const& path)
  use<FullShard, WrapIf<&by_module>>();
#elif defined( \
    CASE_ignore_if_signature)  // expect-error: weft: IgnoreIf<function>: write bool function(std::string const& name, at::Tensor const& parameter)
  use<FullShard, IgnoreIf<&by_tensor>>();
#elif defined( \
    CASE_gradients_only)  // expect-error: weft: FSDP<Mode>: this Mode cuts some of parameters, gradients and optimizer states and keeps others whole
  use<GradientsOnly>();
#elif defined( \
    CASE_offload_not_built)  // expect-error: weft: FSDP<OffloadParams | OffloadOptimizer> parses, but offloading is not built yet
  use<FullShard, OffloadParams>();
#else                        // control
  use<FullShard, WrapPolicy<Block>>();
  use<ShardGradOp, WrapPolicy<BlockImpl, weft::nn::Linear>, SizeBased<100>>();
  use<NoShard, WrapIf<&by_module_and_path>, IgnoreIf<&by_name_and_tensor>, Ignore<Plain>>();
#endif
}
