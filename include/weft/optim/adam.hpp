// optim/adam.hpp -- Adam and AdamW in one kernel per group.
// In: a description and parameters with gradients. Out: parameters moved as torch::optim::Adam and AdamW move them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <weft/optim/description.hpp>
#include <weft/optim/fused.hpp>

namespace weft::inline v0 {
namespace optim {

// What torch::optim::Adam and AdamW differ in.
template <class Base>
struct AdamFamily;
template <>
struct AdamFamily<torch::optim::Adam> {
  using Options = torch::optim::AdamOptions;
  using State = torch::optim::AdamParamState;
  static constexpr char const* name = "Adam";
};
template <>
struct AdamFamily<torch::optim::AdamW> {
  using Options = torch::optim::AdamWOptions;
  using State = torch::optim::AdamWParamState;
  static constexpr char const* name = "AdamW";
};

// [Note: one step tensor] The kernel wants a step count in a tensor per parameter, torch's state keeps an integer. The
// integer stays the truth (so saving, loading and reading state are torch's own), and all parameters with the same
// count share one tensor, made for the call: nothing is mirrored and no list of small tensors is incremented.
template <class Base>
class FusedAdamFamily : public Base {
 public:
  using Options = typename AdamFamily<Base>::Options;
  using State = typename AdamFamily<Base>::State;

  FusedAdamFamily(std::vector<torch::optim::OptimizerParamGroup> groups, Options defaults, bool maximize = false)
      : Base(std::move(groups), std::move(defaults)), maximize_(maximize) {}

  bool maximize() const noexcept { return maximize_; }

  at::Tensor step(typename Base::LossClosure closure = nullptr) override {
    at::NoGradGuard no_grad;
    at::Tensor loss;
    if (closure) {
      at::AutoGradMode with_grad(true);
      loss = closure();
    }
    for (auto& group : this->param_groups_) step_group(group.params(), static_cast<Options const&>(group.options()));
    return loss;
  }

 private:
  void step_group(std::vector<at::Tensor> const& parameters, Options const& options) {
    FusedCalls calls(parameters.size());
    for (at::Tensor const& parameter : parameters) {
      at::Tensor const& gradient = parameter.grad();
      if (!gradient.defined()) continue;  // unused: not moved by momentum or weight decay either. tests/optim/sgd.cpp
      refuse_sparse(gradient, AdamFamily<Base>::name);
      auto& slot = this->state_[parameter.unsafeGetTensorImpl()];
      if (!slot) slot = std::make_unique<State>();
      auto& state = static_cast<State&>(*slot);
      state.step(state.step() + 1);
      FusedCall& call = calls.call_for(parameter, state.step());
      call.add(parameter, gradient);
      call.add_state(0, state.exp_avg());
      call.add_state(1, state.exp_avg_sq());
      if (options.amsgrad()) call.add_state(2, state.max_exp_avg_sq());
    }
    for (FusedCall& call : calls) {
      auto const lists = call.prepare({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"});
      if (!lists.parameters.empty()) step_lists(lists, call, options);
      call.finish();
    }
  }

  void step_lists(FusedLists const& lists, FusedCall const& call, Options const& options) const {
    at::Tensor const steps = at::full({}, static_cast<double>(call.steps),
                                      at::TensorOptions().dtype(at::kFloat).device(call.device));
    std::vector<at::Tensor> const all_steps(lists.parameters.size(), steps);  // see [Note: one step tensor]
    auto const& [exp_avg, exp_avg_sq, max_exp_avg_sq] = lists.states;
    auto const [beta1, beta2] = options.betas();
    if constexpr (std::is_same_v<Base, torch::optim::AdamW>)
      at::_fused_adamw_(lists.parameters, lists.gradients, exp_avg, exp_avg_sq, max_exp_avg_sq, all_steps, options.lr(),
                        beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(), maximize_);
    else
      at::_fused_adam_(lists.parameters, lists.gradients, exp_avg, exp_avg_sq, max_exp_avg_sq, all_steps, options.lr(),
                       beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(), maximize_);
  }

  bool maximize_;  // torch::optim's options have no such word
};

using FusedAdam = FusedAdamFamily<torch::optim::Adam>;
using FusedAdamW = FusedAdamFamily<torch::optim::AdamW>;

struct AdamGroup {
  When when{};
  std::optional<double> lr{};
  std::optional<std::pair<double, double>> betas{};
  std::optional<double> eps{};
  std::optional<double> weight_decay{};
  std::optional<bool> amsgrad{};
  bool skip = false;  // leave these parameters alone
};

template <class Base, class Description>
typename AdamFamily<Base>::Options adam_options(Description const& description, AdamGroup const& group = {}) {
  auto const [beta1, beta2] = group.betas.value_or(description.betas);
  return typename AdamFamily<Base>::Options(group.lr.value_or(description.lr))
      .betas(std::make_tuple(beta1, beta2))
      .eps(group.eps.value_or(description.eps))
      .weight_decay(group.weight_decay.value_or(description.weight_decay))
      .amsgrad(group.amsgrad.value_or(description.amsgrad));
}

template <class Base, class Description>
std::unique_ptr<FusedAdamFamily<Base>> make_adam(Description const& description,
                                                 std::vector<NamedParameter> const& parameters) {
  auto check = [](std::string const& where, auto const& options) {
    auto const [beta1, beta2] = options.betas();
    check_at_least_zero(where, "lr", options.lr());
    check_at_least_zero(where, "eps", options.eps());
    check_at_least_zero(where, "weight_decay", options.weight_decay());
    if (!(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1))
      fail<ConfigurationError>("weft: ", where, ": .betas = {", beta1, ", ", beta2,
                               "}: give two numbers from 0 to below 1");
  };
  return make_grouped<FusedAdamFamily<Base>>(
      AdamFamily<Base>::name, parameters, description.groups, adam_options<Base>(description),
      [&description](AdamGroup const& group) { return adam_options<Base>(description, group); }, check,
      description.maximize);
}

}  // namespace optim

struct Adam {
  using Group = optim::AdamGroup;
  double lr = 1e-3;
  std::pair<double, double> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.0;  // added to the gradient
  bool amsgrad = false;
  bool maximize = false;
  std::vector<Group> groups{};

  torch::optim::AdamOptions options() const { return optim::adam_options<torch::optim::Adam>(*this); }
  std::unique_ptr<optim::FusedAdam> make(std::vector<optim::NamedParameter> const& parameters) const {
    return optim::make_adam<torch::optim::Adam>(*this, parameters);
  }
};

// weft::AdamW{.lr = 3e-4, .groups = {{.when = is_norm_or_bias, .weight_decay = 0.0}}}
struct AdamW {
  using Group = optim::AdamGroup;
  double lr = 1e-3;
  std::pair<double, double> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;  // taken off the parameter
  bool amsgrad = false;
  bool maximize = false;
  std::vector<Group> groups{};

  torch::optim::AdamWOptions options() const { return optim::adam_options<torch::optim::AdamW>(*this); }
  std::unique_ptr<optim::FusedAdamW> make(std::vector<optim::NamedParameter> const& parameters) const {
    return optim::make_adam<torch::optim::AdamW>(*this, parameters);
  }
};

}  // namespace weft
