// 05_activation_checkpointing.cpp -- what is held after forward: all activations, or the blocks' inputs alone.
//
// One policy beside the strategy; the loop, the losses and the collectives stay as they are. What a block kept for
// backward is computed again when backward gets there: a third more arithmetic, for memory that no longer grows with
// what is inside a block.
//
// run: 1
// expect: kept: 36864 floats beyond the input after forward, loss after 5 steps 0.94
// expect: recomputed: 4096 floats beyond the input
// expect: recomputed by hand: 4096 floats beyond the input
// expect: the losses are equal to the bit
// run: 2
// expect: the losses are equal to the bit
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <weft/nn/layers.hpp>
#include <weft/report/allocator.hpp>
#include <weft/weft.hpp>

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    up = register_module("up", weft::nn::Linear(32, 128));
    down = register_module("down", weft::nn::Linear(128, 32));
  }
  at::Tensor forward(at::Tensor const& x) { return x + down(at::gelu(up(x))); }
  weft::nn::Linear up = nullptr, down = nullptr;
};
WEFT_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool by_hand = false) : by_hand(by_hand) {
    for (int i = 0; i < 4; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block()));
  }
  at::Tensor forward(at::Tensor x) {
    // Any function will do for weft::checkpoint, also one that is no unit; the policy does the same for all Blocks.
    for (auto& block : blocks)
      x = by_hand ? weft::checkpoint([block](at::Tensor const& t) mutable { return block(t); }, x) : block(x);
    return x;
  }
  bool by_hand;
  std::vector<Block> blocks;
};
TORCH_MODULE(Net);

struct Result {
  double loss = 0;
  std::size_t floats = 0;
};

template <class... Policies>
Result train(char const* name, int devices, bool by_hand = false) {
  using Run = weft::Fabric<weft::FSDP<weft::FullShard, weft::WrapPolicy<Block>>, weft::On<weft::Cpu>, Policies...>;
  auto outcome = Run::launch({.devices = devices}, [by_hand](Run& fabric) {
    fabric.seed_everything(7);
    auto [model, optimizer] = fabric.setup(Net(by_hand), weft::SGD{.lr = 0.1});
    auto const x = at::randn({32, 32});
    double loss_value = 0;
    std::size_t bytes = 0;
    for (int step = 0; step < 5; ++step) {
      weft::report::MemoryCount const memory;
      auto const y = model(x);
      bytes = memory.of(weft::report::MemoryTag::rest).bytes;  // not the parameters'
      auto const loss = y.pow(2).mean();
      fabric.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      loss_value = loss.template item<double>();
    }
    return std::pair(loss_value, bytes);
  });
  if (!outcome) std::exit(outcome.exit_code());
  auto const generator = by_hand || sizeof...(Policies) > 0
                             ? 4 * at::detail::getDefaultCPUGenerator().get_state().nbytes()
                             : 0;  // random numbers are the same again
  Result const result{outcome->first, (outcome->second - generator) / sizeof(float)};
  std::printf("%s: %zu floats beyond the input after forward, loss after 5 steps %.6f\n", name, result.floats,
              result.loss);
  return result;
}

int main(int argc, char** argv) {
  int const devices = argc > 1 ? std::atoi(argv[1]) : 2;
  auto const kept = train("kept", devices);
  auto const recomputed = train<weft::ActivationCheckpointing<Block>>("recomputed", devices);
  auto const by_hand = train("recomputed by hand", devices, true);
  bool const equal = kept.loss == recomputed.loss && kept.loss == by_hand.loss;
  std::printf("the losses %s\n", equal ? "are equal to the bit" : "differ");
  return equal ? 0 : 1;
}
