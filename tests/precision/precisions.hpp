// precisions.hpp -- functions of a fabric in one precision.
// In: a precision, a number of ranks, a function. Out: a failing rank fails the test with its message.
#pragma once

#include "ranks.hpp"

namespace test {

template <class Precision, class Strategy = weft::SingleDevice>
using In = weft::Fabric<Strategy, weft::On<weft::Cpu>, Precision>;
/// Without a device, since none is faster in fp16 than a GPU: for tests of what fp16 comes to, wherever they run.
template <class Strategy = weft::SingleDevice>
using InFp16 = weft::Fabric<Strategy, weft::Fp16Mixed>;

template <class Run>
void on(int world, std::function<void(Run&)> function) {
  auto const outcome = Run::launch({.devices = world}, std::move(function));
  if (!outcome) FAIL(outcome.failures().front().message);
}
template <class Precision>
void in(std::function<void(In<Precision>&)> function) {
  on<In<Precision>>(1, std::move(function));
}

/// Two weights, whose gradient is what goes in.
struct PairImpl : torch::nn::Module {
  PairImpl() { w = register_parameter("w", torch::ones({2})); }
  at::Tensor forward(at::Tensor const& gradient) { return (w * gradient).sum(); }
  at::Tensor w;
};
TORCH_MODULE(Pair);

/// fp32 parameters, nothing cast, and a loss that is scaled: what a scaler does, without what fp16 does.
struct Scaled {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Scaled";
  static constexpr weft::PrecisionConfig config{.loss_scaling = true,
                                                .scaling = {.initial_scale = 1024, .growth_interval = 3}};
};

}  // namespace test
