// unit/gradient_hook.hpp -- who hears that a parameter's gradient is complete.
// In: a parameter and a function. Out: a call for each backward pass that reaches the parameter, for as long as the
// hook lives.
#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include <weft/comm/autograd_node.hpp>

namespace weft::inline v0::unit {

/// Calls `arrived` when a backward pass has accumulated the parameter's gradient, on autograd's thread. It keeps the
/// parameter's accumulator alive, to which LibTorch's own pointer is weak: a hook on one that nobody holds goes with
/// the statement that made it. A graph may outlive the hook, and calls nothing then.
///
///   hooks_.emplace_back(parameter, [this, i] { reduce(i); });
class GradientHook {
 public:
  GradientHook(at::Tensor const& parameter, std::function<void()> arrived);
  ~GradientHook() { disconnect(); }
  GradientHook(GradientHook&&) noexcept = default;
  GradientHook& operator=(GradientHook&&) = delete;

  void disconnect() {
    if (arrived_) *arrived_ = nullptr;
  }
  comm::NodePtr const& accumulator() const { return accumulator_; }

 private:
  comm::NodePtr accumulator_;
  std::shared_ptr<std::function<void()>> arrived_;
};

}  // namespace weft::unit

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/unit/gradient_hook.ipp>
#endif
