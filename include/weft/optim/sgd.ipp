// optim/sgd.ipp -- definitions of optim/sgd.hpp.
#pragma once

#include <weft/optim/sgd.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_sgd.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::optim {

WEFT_INLINE at::Tensor FusedSGD::step(LossClosure closure) {
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

WEFT_INLINE void FusedSGD::step_group(std::vector<at::Tensor> const& parameters,
                                      torch::optim::SGDOptions const& options) {
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

WEFT_INLINE void FusedSGD::step_rounded(FusedLists& lists, torch::optim::SGDOptions const& options,
                                        bool first_step) const {
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

}  // namespace weft::optim

namespace weft::inline v0 {

WEFT_INLINE torch::optim::SGDOptions SGD::options_of(Group const& group) const {
  return torch::optim::SGDOptions(group.lr.value_or(lr))
      .momentum(group.momentum.value_or(momentum))
      .dampening(group.dampening.value_or(dampening))
      .weight_decay(group.weight_decay.value_or(weight_decay))
      .nesterov(group.nesterov.value_or(nesterov));
}

WEFT_INLINE std::unique_ptr<optim::FusedSGD> SGD::make(std::vector<optim::NamedParameter> const& parameters) const {
  return optim::make_grouped<optim::FusedSGD>(
      "SGD", parameters, groups, options(), [this](Group const& group) { return options_of(group); }, check, maximize);
}

WEFT_INLINE void SGD::check(std::string const& where, torch::optim::SGDOptions const& options) {
  optim::check_at_least_zero(where, "lr", options.lr());
  optim::check_at_least_zero(where, "momentum", options.momentum());
  optim::check_at_least_zero(where, "weight_decay", options.weight_decay());
  if (options.nesterov() && (options.momentum() == 0 || options.dampening() != 0))
    fail<ConfigurationError>("weft: ", where, ": .nesterov needs .momentum above 0 and .dampening = 0, but these are ",
                             options.momentum(), " and ", options.dampening());
}

}  // namespace weft
