// unit/gradient_hook.ipp -- definitions of unit/gradient_hook.hpp.
#pragma once

#include <weft/unit/gradient_hook.hpp>

#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::unit {

struct ArrivalHook final : torch::autograd::FunctionPostHook {
  explicit ArrivalHook(std::shared_ptr<std::function<void()>> it) : arrived(std::move(it)) {}
  torch::autograd::variable_list operator()(torch::autograd::variable_list const& outputs,
                                            torch::autograd::variable_list const&) override {
    if (*arrived) (*arrived)();
    return outputs;
  }
  std::shared_ptr<std::function<void()>> arrived;
};

WEFT_INLINE GradientHook::GradientHook(at::Tensor const& parameter, std::function<void()> arrived)
    : accumulator_(torch::autograd::impl::grad_accumulator(parameter)),
      arrived_(std::make_shared<std::function<void()>>(std::move(arrived))) {
  accumulator_->add_post_hook(std::make_unique<ArrivalHook>(arrived_));
}

}  // namespace weft::unit
