// optim/optimizer.hpp -- the handle that setup returns.
// In: an optimizer, shared or borrowed. Out: step and zero_grad that work on any gradients, and the optimizer itself for schedulers.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>
#include <torch/optim/optimizer.h>

#include <weft/optim/description.hpp>

namespace weft {
namespace optim {

// torch::optim::Optimizer::zero_grad detaches gradients in place, which throws on views such as slices of a DDP bucket.
inline void zero_grad(std::vector<at::Tensor> const& parameters, bool set_to_none = true) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> kept;
  for (at::Tensor const& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    at::Tensor& gradient = parameter.mutable_grad();
    if (set_to_none) {
      gradient.reset();
      continue;
    }
    if (gradient.requires_grad()) gradient = gradient.detach();  // shares memory, so a bucket is zeroed too
    kept.push_back(gradient);
  }
  if (!kept.empty()) at::_foreach_zero_(kept);
}

// All parameters of all groups, in order.
inline std::vector<at::Tensor> parameters_of(torch::optim::Optimizer const& optimizer) {
  std::vector<at::Tensor> all;
  for (auto const& group : optimizer.param_groups()) all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

}  // namespace optim

template <class Torch = torch::optim::Optimizer>
class Optimizer {
  static_assert(optim::TorchOptimizer<Torch>, "weft: Optimizer<O>: O derives from torch::optim::Optimizer");

 public:
  using TorchType = Torch;

  explicit Optimizer(std::shared_ptr<Torch> shared) : optimizer_(std::move(shared)) {
    if (!optimizer_) fail<ConfigurationError>("weft: Optimizer: got a null pointer");
  }
  explicit Optimizer(std::unique_ptr<Torch> owned) : Optimizer(std::shared_ptr<Torch>(std::move(owned))) {}

  // The caller keeps the optimizer, and keeps it alive.
  static Optimizer borrow(Torch& borrowed) { return Optimizer(std::shared_ptr<Torch>(std::shared_ptr<void>(), &borrowed)); }

  at::Tensor step() { return stepped(optimizer_->step()); }
  template <class Closure>
    requires std::is_invocable_r_v<at::Tensor, Closure&>
  at::Tensor step(Closure&& closure) {
    return stepped(optimizer_->step([&closure] { return at::Tensor(closure()); }));
  }
  void zero_grad(bool set_to_none = true) {
    for (auto const& group : optimizer_->param_groups()) optim::zero_grad(group.params(), set_to_none);
  }

  std::vector<at::Tensor> parameters() const { return optim::parameters_of(*optimizer_); }

  Torch& operator*() const noexcept { return *optimizer_; }
  Torch* operator->() const noexcept { return optimizer_.get(); }
  // Also to torch::optim::Optimizer&, which learning rate schedulers take: Torch derives from it.
  operator Torch&() const noexcept { return *optimizer_; }
  std::shared_ptr<Torch> const& shared() const noexcept { return optimizer_; }

  // Who is told of each step that copies of this handle, made from now on, take.
  void after_step(std::function<void(torch::optim::Optimizer&)> told) { after_step_ = std::move(told); }

 private:
  at::Tensor stepped(at::Tensor loss) {
    if (after_step_) after_step_(*optimizer_);
    return loss;
  }

  std::shared_ptr<Torch> optimizer_;
  std::function<void(torch::optim::Optimizer&)> after_step_;
};

}  // namespace weft
