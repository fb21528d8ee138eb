// precision/loss_scaler.hpp -- gradients that fit into fp16.
// In: a loss, and the gradients of each optimizer. Out: backward of the scaled loss; gradients without the scale, and
// whether they are finite.
//
// [Note: when the scale changes] A step is a transaction: any number of backward passes, then each optimizer's step.
// The scale is updated once, when the next backward begins, from what all optimizers met. Gradients that outlive a step
// (accumulated further, or of an optimizer that steps less often) get the new scale then, so that they are never a sum
// of two scales. Each once, also where several optimizers are over a parameter (of which one may step then). An
// optimizer that has gradients when a backward is over holds them in the scale: gradients of a program's own are
// written after that, where there are none, or unscale() comes first. tests/precision/loss_scaler.cpp
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <weft/strategy/precision.hpp>

namespace weft::inline v0::precision {

/// What a checkpoint keeps of a scaler.
struct LossScalerState {
  double scale = 0;
  std::int64_t steps_since_change = 0;
  bool operator==(LossScalerState const&) const = default;
};

/// One for all models and optimizers of a Fabric.
class LossScaler : public std::enable_shared_from_this<LossScaler> {
 public:
  /// Called with a tensor of one element, above 0 if this rank met a gradient that is not finite: it leaves the largest
  /// over all ranks that hold parts of the same gradients. Whole gradients are equal on all ranks, and need no call.
  using Agree = std::function<void(at::Tensor const& found)>;

  /// Multiplies all that there is of a parameter's gradient, where a strategy holds more of it than its grad; false:
  /// the grad is all.
  using Scale = std::function<bool(at::Tensor const& parameter, at::Tensor const& factor)>;

  /// The gradients of one optimizer.
  class Gradients {
   public:
    /// Without the scale, once in a step: before clipping, and before the step. Whether all are finite, on every rank.
    bool unscale();
    /// Unscaled and finite: the step may be taken. Counts as the step.
    bool begin_step() {
      bool const finite = unscale();
      scaler_->count_step(found_);
      return finite;
    }
    /// They are gone.
    void forget() { is_plain_ = carry_scale_ = false; }

   private:
    friend LossScaler;
    Gradients(std::shared_ptr<LossScaler> scaler, std::function<std::vector<at::Tensor>()> parameters, Agree agree,
              Scale scale);

    std::vector<at::Tensor> gradients() const;

    std::shared_ptr<LossScaler> scaler_;
    std::function<std::vector<at::Tensor>()> parameters_;
    Agree agree_;
    Scale scale_;
    at::Tensor found_;
    bool carry_scale_ =
        false;  // set by a backward that leaves gradients; those that a program writes itself have no scale
    bool is_plain_ = false;
  };

  explicit LossScaler(LossScaling const& how = {}, at::Device device = at::kCPU);

  /// The scaler must be held by a shared pointer.
  std::shared_ptr<Gradients> watch(std::function<std::vector<at::Tensor>()> parameters, Agree agree = {},
                                   Scale scale = {});

  /// Backward of the scaled loss.
  void backward(at::Tensor const& loss);
  bool is_in_backward() const noexcept { return is_in_backward_; }

  /// What the next backward multiplies its loss by, as far as is known now.
  double scale() const { return state().scale; }

  LossScalerState state() const;
  void load(LossScalerState const& state);

 private:
  static constexpr float smallest_scale = std::numeric_limits<float>::min();  // below it the reciprocal is infinite
  static bool is_scale(double scale) { return scale >= smallest_scale && scale <= std::numeric_limits<float>::max(); }

  static LossScaling const& checked(LossScaling const& how);

  template <class F>
  void for_each(F const& f) {
    for (auto const& gradients : watched_)
      if (auto const alive = gradients.lock()) f(*alive);
  }

  using Known = std::unordered_set<at::TensorImpl const*>;
  /// Parameters of the optimizers that are `in_state`, each once: those that are known already are left out.
  template <class F>
  void for_each_parameter(Known& known, bool Gradients::* in_state, F const& f) {
    for_each([&](Gradients const& of) {
      if (!(of.*in_state)) return;
      for (auto const& parameter : of.parameters_())
        if (known.insert(parameter.unsafeGetTensorImpl()).second) f(of, parameter);
    });
  }

  void count_step(at::Tensor const& found) {
    auto const here = found.to(scale_.device());
    found_ = found_.defined() ? found_.add(here) : here;
  }

  /// The scale and its count after the steps since the last update.
  std::pair<at::Tensor, at::Tensor> next() const;
  /// See [Note: when the scale changes].
  void settle();
  void change_to(at::Tensor scale, at::Tensor tracker);
  static void multiply(at::Tensor const& gradient, at::Tensor const& factor) {
    if (gradient.defined()) gradient.mul_(factor.to(gradient.device()));
  }

  /// Divides by the scale, if they carry it. The result, on the device of the first: above 0 if one is not finite.
  at::Tensor unscale(std::vector<at::Tensor> const& gradients, bool carry_scale) const;

  LossScaling how_;
  at::Tensor scale_, growth_tracker_;
  at::Tensor found_;  // over the optimizers that stepped since the last update; undefined: none did
  std::vector<std::weak_ptr<Gradients>> watched_;
  bool is_in_backward_ = false;
};

}  // namespace weft::precision

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/precision/loss_scaler.ipp>
#endif
