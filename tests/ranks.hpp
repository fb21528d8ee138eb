// ranks.hpp -- tests on real processes.
// In: a function of the fabric. Out: what it returned on rank 0; a failing rank fails the test with its message.
#pragma once

#include "test.hpp"

#include "expect.hpp"

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include <weft/weft.hpp>

namespace test {

template <class Strategy = weft::DDP<>>
using Run = weft::Fabric<Strategy, weft::On<weft::Cpu>>;

/// std::function: launching is compiled once for each result, not for each function.
template <class Strategy = weft::DDP<>, class Function>
auto on_ranks(int world, Function function) {
  auto outcome = Run<Strategy>::launch(
      {.devices = world},
      std::function<std::invoke_result_t<Function&, Run<Strategy>&>(Run<Strategy>&)>(std::move(function)));
  if (!outcome) FAIL(outcome.failures().front().message);
  return std::move(*outcome);
}

/// The first failure's message of a job that has to fail, within 10 s.
template <class Strategy = weft::DDP<>, class Function>
std::string failure_on_ranks(int world, Function function) {
  auto const start = std::chrono::steady_clock::now();
  auto const outcome = Run<Strategy>::launch({.devices = world},
                                             std::function<void(Run<Strategy>&)>(std::move(function)));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  if (outcome) return "the job did not fail";
  CHECK(outcome.exit_code() != 0);
  return outcome.failures().front().message;
}

inline bool contains(std::string const& text, std::string const& part) { return text.find(part) != text.npos; }

/// Largest difference relative to the largest value of `b`.
inline double relative_difference(at::Tensor const& a, at::Tensor const& b) {
  if (a.numel() == 0 && b.numel() == 0) return 0;
  auto const scale = std::max(b.abs().max().item<double>(), 1e-30);
  return (a - b).abs().max().item<double>() / scale;
}

/// Parameters of a set-up model as one process has them. Collective.
template <class Run, class Model>
std::vector<at::Tensor> whole_weights(Run& fabric, Model const& model) {
  auto const whole = fabric.summon_full_params(model);
  std::vector<at::Tensor> result;
  for (auto const& parameter : model.parameters()) result.push_back(parameter.detach().clone());
  return result;
}

/// One weight and no input: the loss's gradient is whatever the test says.
struct ScalarImpl : torch::nn::Module {
  ScalarImpl() { w = register_parameter("w", torch::ones({})); }
  at::Tensor forward(double factor) { return w * factor; }
  at::Tensor w;
};
TORCH_MODULE(Scalar);

}  // namespace test
