// optim/optimizer.hpp -- the handle that setup returns.
// In: an optimizer, shared or borrowed. Out: step and zero_grad that work on any gradients, and the optimizer itself
// for schedulers.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <weft/optim/description.hpp>

namespace weft::inline v0 {
namespace optim {

// torch::optim::Optimizer::zero_grad detaches gradients in place, which throws on views such as slices of a DDP bucket.
void zero_grad(std::vector<at::Tensor> const& parameters, bool set_to_none = true);

// All parameters of all groups, in order.
std::vector<at::Tensor> parameters_of(torch::optim::Optimizer const& optimizer);

/// What stands around the steps of an optimizer: a precision whose losses are scaled, or that keeps cast copies of
/// weights; an engine that has something to do before or after a step. Of several the first is asked first, and told
/// last.
struct StepRule {
  virtual ~StepRule() = default;
  /// Makes gradients what the loss says they are; whether all are finite, on every rank.
  virtual bool unscale() { return true; }
  /// Whether the step may be taken. The first rule that refuses ends it, and those behind it are not asked.
  virtual bool begin_step(torch::optim::Optimizer& optimizer, bool has_closure) {
    static_cast<void>(optimizer), static_cast<void>(has_closure);
    return true;
  }
  virtual void end_step(torch::optim::Optimizer& optimizer) { static_cast<void>(optimizer); }
  virtual void zeroed() {}
};
using StepRules = std::vector<std::shared_ptr<StepRule>>;

}  // namespace optim

template <class Torch = torch::optim::Optimizer>
class Optimizer {
  static_assert(optim::TorchOptimizer<Torch>, "weft: Optimizer<O>: O derives from torch::optim::Optimizer");

 public:
  using TorchType = Torch;

  explicit Optimizer(std::shared_ptr<Torch> shared, optim::StepRules rules = {})
      : optimizer_(std::move(shared)), rules_(std::move(rules)) {
    if (!optimizer_) fail<ConfigurationError>("weft: Optimizer: got a null pointer");
  }
  explicit Optimizer(std::unique_ptr<Torch> owned, optim::StepRules rules = {})
      : Optimizer(std::shared_ptr<Torch>(std::move(owned)), std::move(rules)) {}

  // The caller keeps the optimizer, and keeps it alive.
  static Optimizer borrow(Torch& borrowed, optim::StepRules rules = {}) {
    return Optimizer(std::shared_ptr<Torch>(std::shared_ptr<void>(), &borrowed), std::move(rules));
  }

  /// Whether parameters moved: false, on all ranks alike, when the loss was scaled and gradients overflowed. `if
  /// (optimizer.step()) scheduler.step();`
  bool step() {
    if (!may_step(/*has_closure=*/false)) return false;
    optimizer_->step();
    stepped();
    return true;
  }
  template <class Closure>
    requires std::is_invocable_r_v<at::Tensor, Closure&>
  at::Tensor step(Closure&& closure) {
    may_step(/*has_closure=*/true);
    auto loss = optimizer_->step([&closure] { return at::Tensor(closure()); });
    stepped();
    return loss;
  }
  void zero_grad(bool set_to_none = true) {
    for (auto const& group : optimizer_->param_groups()) optim::zero_grad(group.params(), set_to_none);
    for (auto const& rule : rules_) rule->zeroed();
  }

  /// Gradients as the loss has them, for code of one's own that reads or changes them between backward and step: where
  /// losses are scaled, without the scale. Whether all are finite then; true where nothing is scaled. Clipping and step
  /// do it themselves.
  bool unscale() const {
    bool finite = true;
    for (auto const& rule : rules_) finite = rule->unscale() && finite;
    return finite;
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
  bool may_step(bool has_closure) {
    for (auto const& rule : rules_)
      if (!rule->begin_step(*optimizer_, has_closure)) return false;
    return true;
  }
  void stepped() {
    for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule) (*rule)->end_step(*optimizer_);
    if (after_step_) after_step_(*optimizer_);
  }

  std::shared_ptr<Torch> optimizer_;
  optim::StepRules rules_;
  std::function<void(torch::optim::Optimizer&)> after_step_;
};

template <class T>
inline constexpr bool is_optimizer_v = false;
template <class O>
inline constexpr bool is_optimizer_v<Optimizer<O>> = true;

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/optim/optimizer.ipp>
#endif
