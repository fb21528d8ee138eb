// 07_precision.cpp -- in which numbers a model is stored and computed, and a precision of one's own.
//
// One policy beside the strategy; the loop stays as it is. A config says it in numbers; where a config does not say
// enough, rules do.
//
// run: 1
// expect: Bf16Mixed: weights Float, loss 0.0
// expect: Bf16: weights BFloat16, loss 0.0
// expect: NormsInFp32: weights BFloat16, loss 0.0
// expect: NormsInFp32: the norm's weight is Float
// expect: Scaled: weights Float, loss 0.0
// expect: Scaled: a step of 60 was skipped, the scale is 512
// run: 2
// expect: Bf16Mixed: weights Float, loss 0.0
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>

#include <torch/nn/modules/normalization.h>

#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

// A precision of one's own is a name and a config. This one stores and computes in fp32 and scales its loss, as
// Fp16Mixed does.
struct Scaled {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Scaled";
  static constexpr weft::PrecisionConfig config{.loss_scaling = true, .scaling = {.initial_scale = 1024}};
};

// Bf16 all over, but for LayerNorm, whose parameters stay in fp32: this is about modules, so a config alone cannot say
// it.
struct NormsInFp32 {
  using category = weft::category::precision;
  static constexpr std::string_view name = "NormsInFp32";
  static constexpr weft::PrecisionConfig config{.stored = weft::Number::bf16, .computed = weft::Number::bf16};
};
template <>
struct weft::Mechanism<NormsInFp32> {
  struct Rules : weft::precision::Rules {
    using weft::precision::Rules::Rules;
    at::ScalarType parameter_dtype(torch::nn::Module const& owner, std::string const& name,
                                   at::Tensor const& parameter) const override {
      bool const is_norm = dynamic_cast<torch::nn::LayerNormImpl const*>(&owner) != nullptr;
      return is_norm ? at::kFloat : weft::precision::Rules::parameter_dtype(owner, name, parameter);
    }
  };
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    up = register_module("up", weft::nn::Linear(4, 32));
    norm = register_module("norm", weft::nn::LayerNorm(torch::nn::LayerNormOptions({32})));
    down = register_module("down", weft::nn::Linear(32, 1));
  }
  at::Tensor forward(at::Tensor const& x) { return down(at::tanh(norm(up(x)))); }
  weft::nn::Linear up = nullptr, down = nullptr;
  weft::nn::LayerNorm norm = nullptr;
};
TORCH_MODULE(Net);

template <class Precision>
int train(int devices) {
  using Run = weft::Fabric<weft::DDP<>, Precision, weft::On<weft::Cpu>>;
  auto outcome = Run::launch({.devices = devices}, [](Run& fabric) {
    fabric.seed_everything(7);
    auto [model, optimizer] = fabric.setup(Net(), weft::AdamW{.lr = 0.01});
    auto const x = at::randn({32, 4}), target = x.sum(1, true).sin();
    double last = 0;
    int skipped = 0;
    for (int step = 0; step < 60; ++step) {
      auto loss = at::mse_loss(model(x), target);  // outputs are fp32, whatever was computed
      if (step == 30 && Precision::config.loss_scaling) loss = loss * INFINITY;
      fabric.backward(loss);
      fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0});
      if (!optimizer.step()) ++skipped;  // with loss scaling: gradients overflowed, and nothing moved
      optimizer.zero_grad();
      last = loss.template item<double>();
    }
    char line[160];
    std::snprintf(line, sizeof line, "%s: weights %s, loss %.3f", Precision::name.data(),
                  c10::toString(model->up->weight.scalar_type()), last);
    fabric.print(line);
    if constexpr (std::is_same_v<Precision, NormsInFp32>)
      fabric.print(Precision::name, ": the norm's weight is ", c10::toString(model->norm->weight.scalar_type()));
    if constexpr (Precision::config.loss_scaling)
      fabric.print(Precision::name, ": a step of 60 was ", skipped == 1 ? "skipped" : "not skipped", ", the scale is ",
                   fabric.loss_scaler().scale());
  });
  return outcome.exit_code();
}

int main(int argc, char** argv) {
  int const devices = argc > 1 ? std::atoi(argv[1]) : 2;
  return train<weft::Bf16Mixed>(devices) + train<weft::Bf16>(devices) + train<NormsInFp32>(devices) +
                     train<Scaled>(devices) ==
                 0
             ? 0
             : 1;
}
