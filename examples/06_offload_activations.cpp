// 06_offload_activations.cpp -- activations wait for backward somewhere else.
//
// On a GPU the policy moves what blocks keep for backward to pinned host memory, and back. This program runs on the
// CPU, where that is no other place, so it names one: files. A store of one's own is a class with one function.
//
// run: 1
// expect: kept: 2.25 MiB of activations in memory after forward, 0.00 MiB in files
// expect: offloaded: 0.06 MiB of activations in memory after forward, 2.25 MiB in files
// expect: inputs alone: 0.08 MiB of activations in memory after forward, 0.25 MiB in files
// expect: the losses are equal to the bit
// run: 2
// expect: the losses are equal to the bit
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <weft/activation/file_store.hpp>
#include <weft/nn/layers.hpp>
#include <weft/report/allocator.hpp>
#include <weft/weft.hpp>

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    up = register_module("up", weft::nn::Linear(64, 256));
    down = register_module("down", weft::nn::Linear(256, 64));
  }
  at::Tensor forward(at::Tensor const& x) { return x + down(at::gelu(up(x))); }
  weft::nn::Linear up = nullptr, down = nullptr;
};
WEFT_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 4; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block()));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x.pow(2).mean();
  }
  std::vector<Block> blocks;
};
TORCH_MODULE(Net);

template <class... Policies>
double train(char const* name, int devices, std::filesystem::path const& folder) {
  using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>, Policies...>;
  auto outcome = Run::launch({.devices = devices}, [&](Run& fabric) {
    auto const files = std::make_shared<weft::activation::FilesBelow>(folder);
    if constexpr (Run::composition::offloads_activations) fabric.offload_activations_to(files);
    fabric.seed_everything(7);
    auto [model, optimizer] = fabric.setup(Net(), weft::SGD{.lr = 0.1});
    auto const x = at::randn({256, 64});
    double loss_value = 0, in_memory = 0, in_files = 0;
    for (int step = 0; step < 3; ++step) {
      weft::report::MemoryCount const memory;
      auto const loss = model(x);
      in_memory = static_cast<double>(memory.all().bytes), in_files = static_cast<double>(files->bytes());
      fabric.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      loss_value = loss.template item<double>();
    }
    return std::tuple(loss_value, in_memory, in_files);
  });
  if (!outcome) std::exit(outcome.exit_code());
  auto const [loss, in_memory, in_files] = outcome.value();
  std::printf("%s: %.2f MiB of activations in memory after forward, %.2f MiB in files; loss %.6f\n", name,
              in_memory / (1 << 20), in_files / (1 << 20), loss);
  return loss;
}

int main(int argc, char** argv) {
  int const devices = argc > 1 ? std::atoi(argv[1]) : 2;
  auto const folder =
      std::filesystem::temp_directory_path();  // the files there have no names, and end with the program
  double const kept = train("kept", devices, folder);
  double const offloaded = train<weft::OffloadActivations<Block>>("offloaded", devices, folder);
  // Both: a block's input waits in a file, and the rest is computed again.
  double const inputs = train<weft::OffloadActivations<Block>, weft::ActivationCheckpointing<Block>>("inputs alone",
                                                                                                     devices, folder);
  bool const equal = kept == offloaded && kept == inputs;
  std::printf("the losses %s\n", equal ? "are equal to the bit" : "differ");
  return equal ? 0 : 1;
}
