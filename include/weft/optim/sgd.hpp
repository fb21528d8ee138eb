// optim/sgd.hpp -- stochastic gradient descent in one kernel per group.
// In: a description and parameters with gradients. Out: parameters moved as torch::optim::SGD moves them: bit by bit
// without momentum or in bf16 and fp16, and to the last rounding where the kernel joins momentum's multiplication and
// addition.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_sgd.h>
#include <c10/core/ScalarType.h>
#include <torch/optim/sgd.h>

#include <weft/optim/description.hpp>
#include <weft/optim/fused.hpp>

namespace weft::inline v0 {
namespace optim {

class FusedSGD : public torch::optim::SGD {
 public:
  FusedSGD(std::vector<torch::optim::OptimizerParamGroup> groups, torch::optim::SGDOptions defaults,
           bool maximize = false)
      : torch::optim::SGD(std::move(groups), std::move(defaults)), maximize_(maximize) {}

  bool maximize() const noexcept { return maximize_; }

  at::Tensor step(LossClosure closure = nullptr) override {
    at::NoGradGuard no_grad;
    at::Tensor loss;
    if (closure) {
      at::AutoGradMode with_grad(true);
      loss = closure();
    }
    for (auto& group : param_groups_)
      step_group(group.params(), static_cast<torch::optim::SGDOptions const&>(group.options()));
    return loss;
  }

 private:
  void step_group(std::vector<at::Tensor> const& parameters, torch::optim::SGDOptions const& options) {
    constexpr std::int64_t first_step = 0, later_step = 1;
    FusedCalls calls(parameters.size());
    for (at::Tensor const& parameter : parameters) {
      at::Tensor const& gradient = parameter.grad();
      if (!gradient.defined()) continue;  // unused: not moved by momentum or weight decay either. tests/optim/sgd.cpp
      refuse_sparse(gradient, "SGD");
      if (options.momentum() == 0) {
        calls.call_for(parameter, later_step).add(parameter, gradient);
        continue;
      }
      auto& state = state_[parameter.unsafeGetTensorImpl()];
      if (!state) state = std::make_unique<torch::optim::SGDParamState>();
      auto& buffer = static_cast<torch::optim::SGDParamState&>(*state).momentum_buffer();
      FusedCall& call = calls.call_for(parameter, buffer.defined() ? later_step : first_step);
      call.add(parameter, gradient);
      call.add_state(0, buffer);
    }
    for (FusedCall& call : calls) {
      auto const lists = call.prepare({"momentum buffer"});
      if (lists.parameters.empty()) {
        // all are empty on this rank
      } else if (c10::isReducedFloatingType(call.dtype)) {
        step_rounded(
            call, options,
            call.steps == first_step);  // parameter by parameter: joined, the kernels would round elements elsewhere
      } else {
        at::_fused_sgd_(lists.parameters, lists.gradients, lists.states[0], options.weight_decay(), options.momentum(),
                        options.lr(), options.dampening(), options.nesterov(), maximize_, call.steps == first_step);
      }
      call.finish();
    }
  }

  // The fused kernel keeps a bf16 or fp16 update in fp32 until the end, torch::optim::SGD rounds after every operation
  // (learning rate included). The two part ways from the first step on, so this is torch's sequence, list by list.
  void step_rounded(FusedLists& lists, torch::optim::SGDOptions const& options, bool first_step) const {
    std::vector<at::Tensor> update = lists.gradients;
    if (maximize_) update = at::_foreach_mul(update, -1);
    if (options.weight_decay() != 0) update = at::_foreach_add(update, lists.parameters, options.weight_decay());
    if (options.momentum() != 0) {
      std::vector<at::Tensor>& buffers = lists.states[0];
      if (first_step) {
        for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(update[i]);
      } else {
        at::_foreach_mul_(buffers, options.momentum());
        at::_foreach_add_(buffers, update, 1 - options.dampening());
      }
      update = options.nesterov() ? at::_foreach_add(update, buffers, options.momentum()) : buffers;
    }
    at::_foreach_add_(lists.parameters, update, -options.lr());
  }

  bool maximize_;  // torch::optim::SGDOptions has no such word
};

}  // namespace optim

// weft::SGD{.lr = 0.1, .momentum = 0.9, .groups = {{.when = is_bias, .weight_decay = 0.0}}}
struct SGD {
  struct Group {
    optim::When when{};
    std::optional<double> lr{};
    std::optional<double> momentum{};
    std::optional<double> dampening{};
    std::optional<double> weight_decay{};
    std::optional<bool> nesterov{};
    bool skip = false;  // leave these parameters alone
  };

  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  bool maximize = false;
  std::vector<Group> groups{};

  torch::optim::SGDOptions options() const { return options_of(Group{}); }
  torch::optim::SGDOptions options_of(Group const& group) const {
    return torch::optim::SGDOptions(group.lr.value_or(lr))
        .momentum(group.momentum.value_or(momentum))
        .dampening(group.dampening.value_or(dampening))
        .weight_decay(group.weight_decay.value_or(weight_decay))
        .nesterov(group.nesterov.value_or(nesterov));
  }

  std::unique_ptr<optim::FusedSGD> make(std::vector<optim::NamedParameter> const& parameters) const {
    return optim::make_grouped<optim::FusedSGD>(
        "SGD", parameters, groups, options(), [this](Group const& group) { return options_of(group); }, check,
        maximize);
  }

 private:
  static void check(std::string const& where, torch::optim::SGDOptions const& options) {
    optim::check_at_least_zero(where, "lr", options.lr());
    optim::check_at_least_zero(where, "momentum", options.momentum());
    optim::check_at_least_zero(where, "weight_decay", options.weight_decay());
    if (options.nesterov() && (options.momentum() == 0 || options.dampening() != 0))
      fail<ConfigurationError>("weft: ", where,
                               ": .nesterov needs .momentum above 0 and .dampening = 0, but these are ",
                               options.momentum(), " and ", options.dampening());
  }
};

}  // namespace weft
