// recompute.cpp -- a step whose blocks are recomputed in backward, and one that keeps their activations. Reads "MODEL
// STEPS" lines (small, or stack: 12 blocks of Linear, GELU, Linear, LayerNorm) and answers each with a line of JSON:
// seconds of STEPS steps of either kind, which took turns, and bytes that are held after forward beyond those of before
// it; as peers/peer_recompute.py does. "hooks STEPS" answers with a plain step of the small model under LibTorch's
// engine and under weft's, whose hooks nobody uses.
//
// run: --once
// expect: "model":"stack"
// expect: "hooks_s":
#include <chrono>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <weft/nn/layers.hpp>
#include <weft/report/allocator.hpp>
#include <weft/weft.hpp>

#include "../examples/formula.hpp"

namespace {

using Json = nlohmann::ordered_json;

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    up = register_module("up", torch::nn::Linear(256, 1024));
    down = register_module("down", torch::nn::Linear(1024, 256));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({256})));
  }
  at::Tensor forward(at::Tensor const& x) { return norm(down(at::gelu(up(x)))); }
  torch::nn::Linear up = nullptr, down = nullptr;
  torch::nn::LayerNorm norm = nullptr;
};
WEFT_MODULE(Layer);

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < 12; ++i) layers.push_back(register_module(std::to_string(i), Layer()));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  std::vector<Layer> layers;
};
TORCH_MODULE(Stack);

double seconds(std::function<void()> const& run) {
  auto const start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A model with its input: the loss of one forward.
struct Task {
  std::function<at::Tensor()> loss;
  std::function<void()> forget_gradients;

  void step() const {
    loss().backward();
    forget_gradients();
  }
  std::size_t bytes_after_forward() const {
    weft::report::MemoryCount const memory;
    auto const held = loss();
    return memory.all().bytes;
  }
};

template <class Block, class Module>
auto set_up(Module const& module, bool recomputes) {
  weft::Fabric<weft::SingleDevice, weft::On<weft::Cpu>, weft::ActivationCheckpointing<Block>> fabric;
  fabric.launch();
  fabric.activation_config().recompute = recomputes;
  return fabric.setup(module);
}

Task task(std::string const& name, bool recomputes) {
  torch::manual_seed(0);
  if (name == "stack") {
    auto model = set_up<Layer>(Stack(), recomputes);
    return {[model, x = at::randn({512, 256})]() mutable { return model(x).pow(2).sum(); },
            [model] { model->zero_grad(); }};
  }
  auto const& shape = formula::shapes().at(name);
  llama::LanguageModel module(shape);
  formula::initialize(*module, 0);
  auto model = set_up<llama::TransformerBlock>(module, recomputes);
  auto const batch = formula::tokens(0, shape.batch, shape, 0);
  return {[model, batch]() mutable { return llama::loss_of(model(batch.first), batch.second); },
          [model] { model->zero_grad(); }};
}

Json measure(std::string const& name, int steps) {
  auto const kept = task(name, false), recomputed = task(name, true);
  Json answer = {{"model", name},
                 {"kept_bytes", kept.bytes_after_forward()},
                 {"recomputed_bytes", recomputed.bytes_after_forward()}};
  for (int k = 0; k < steps; ++k) {
    answer["kept_s"].push_back(seconds([&] { kept.step(); }));
    answer["recomputed_s"].push_back(seconds([&] { recomputed.step(); }));
  }
  return answer;
}

Json measure_hooks(int steps) {
  auto const plain = task("small", false);
  Json answer;
  for (int k = 0; k < steps; ++k) {
    torch::autograd::set_default_engine_stub(&torch::autograd::Engine::get_base_engine);
    answer["plain_s"].push_back(seconds([&] { plain.step(); }));
    {
      auto const guard = weft::saved_tensors([](at::Tensor const& t) { return t; },
                                             [](at::Tensor const& t) { return t; });
    }
    answer["hooks_s"].push_back(seconds([&] { plain.step(); }));
  }
  return answer;
}

Json answer(std::string const& line) {
  std::istringstream words(line);
  std::string what;
  int steps = 0;
  words >> what >> steps;
  return what == "hooks" ? measure_hooks(steps) : measure(what, steps);
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc > 1 && std::string(argv[1]) == "--once") {
    for (auto const* line : {"small 2", "stack 2", "hooks 2"}) std::cout << answer(line) << std::endl;
    return 0;
  }
  for (std::string line; std::getline(std::cin, line);) std::cout << answer(line) << std::endl;
}
