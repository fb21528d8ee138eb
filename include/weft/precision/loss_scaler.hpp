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

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <weft/core/error.hpp>
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
    bool unscale() {
      if (!is_plain_) {
        at::NoGradGuard const no_grad;
        found_ = scaler_->unscale(gradients(), carry_scale_);
        if (agree_) agree_(found_);
        is_plain_ = true;
        carry_scale_ = false;
      }
      return found_.item<float>() == 0;
    }
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
              Scale scale)
        : scaler_(std::move(scaler)),
          parameters_(std::move(parameters)),
          agree_(std::move(agree)),
          scale_(std::move(scale)) {}

    std::vector<at::Tensor> gradients() const {
      std::vector<at::Tensor> all;
      for (auto const& parameter : parameters_())
        if (auto const& gradient = parameter.grad(); gradient.defined()) all.push_back(gradient);
      return all;
    }

    std::shared_ptr<LossScaler> scaler_;
    std::function<std::vector<at::Tensor>()> parameters_;
    Agree agree_;
    Scale scale_;
    at::Tensor found_;
    bool carry_scale_ =
        false;  // set by a backward that leaves gradients; those that a program writes itself have no scale
    bool is_plain_ = false;
  };

  explicit LossScaler(LossScaling const& how = {}, at::Device device = at::kCPU)
      : how_(checked(how)),
        scale_(at::full({}, how.initial_scale, at::TensorOptions().dtype(at::kFloat).device(device))),
        growth_tracker_(at::zeros({}, at::TensorOptions().dtype(at::kInt).device(device))) {}

  /// The scaler must be held by a shared pointer.
  std::shared_ptr<Gradients> watch(std::function<std::vector<at::Tensor>()> parameters, Agree agree = {},
                                   Scale scale = {}) {
    std::shared_ptr<Gradients> const gradients(
        new Gradients(shared_from_this(), std::move(parameters), std::move(agree), std::move(scale)));
    std::erase_if(watched_, [](auto const& other) { return other.expired(); });
    watched_.push_back(gradients);
    return gradients;
  }

  /// Backward of the scaled loss.
  void backward(at::Tensor const& loss) {
    settle();
    struct Pass {
      explicit Pass(LossScaler& scaler) : scaler(scaler) { scaler.is_in_backward_ = true; }
      ~Pass() {  // also after an exception: what has arrived is scaled
        scaler.is_in_backward_ = false;
        scaler.for_each([](Gradients& gradients) {
          gradients.carry_scale_ = gradients.carry_scale_ || !gradients.gradients().empty();
        });
      }
      LossScaler& scaler;
    } const pass(*this);
    loss.mul(scale_.to(loss.device())).backward();
  }
  bool is_in_backward() const noexcept { return is_in_backward_; }

  /// What the next backward multiplies its loss by, as far as is known now.
  double scale() const { return state().scale; }

  LossScalerState state() const {
    at::NoGradGuard const no_grad;
    auto const [scale, tracker] = next();
    return {scale.item<float>(), tracker.item<int>()};
  }
  void load(LossScalerState const& state) {
    if (!is_scale(state.scale) || state.steps_since_change < 0)
      fail<ConfigurationError>("weft: LossScaler: load: a scale of ", state.scale, " after ", state.steps_since_change,
                               " steps is no state of a scaler; expected a finite scale of at least ", smallest_scale,
                               " and a count of at least 0");
    at::NoGradGuard const no_grad;
    found_.reset();
    change_to(at::full_like(scale_, state.scale), at::full_like(growth_tracker_, state.steps_since_change));
  }

 private:
  static constexpr float smallest_scale = std::numeric_limits<float>::min();  // below it the reciprocal is infinite
  static bool is_scale(double scale) { return scale >= smallest_scale && scale <= std::numeric_limits<float>::max(); }

  static LossScaling const& checked(LossScaling const& how) {
    auto const require = [](bool holds, char const* name, double value, char const* range) {
      if (!holds) fail<ConfigurationError>("weft: LossScaling: .", name, " = ", value, ": give a number ", range);
    };
    require(is_scale(how.initial_scale), "initial_scale", how.initial_scale, "above 0 that a float can hold");
    require(how.growth_factor > 1, "growth_factor", how.growth_factor, "above 1");
    require(how.backoff_factor > 0 && how.backoff_factor < 1, "backoff_factor", how.backoff_factor, "between 0 and 1");
    require(how.growth_interval > 0, "growth_interval", how.growth_interval, "above 0");
    return how;
  }

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
  std::pair<at::Tensor, at::Tensor> next() const {
    auto scale = scale_.clone(), tracker = growth_tracker_.clone();
    if (found_.defined())
      at::_amp_update_scale_(scale, tracker, found_, how_.growth_factor, how_.backoff_factor, how_.growth_interval),
          scale.clamp_min_(smallest_scale);
    return {scale, tracker};
  }
  /// See [Note: when the scale changes].
  void settle() {
    at::NoGradGuard const no_grad;
    if (found_.defined()) {
      auto [scale, tracker] = next();
      found_.reset();
      change_to(std::move(scale), std::move(tracker));
    }
    Known known;
    for_each_parameter(known, &Gradients::is_plain_,
                       [this](Gradients const&, at::Tensor const& parameter) { multiply(parameter.grad(), scale_); });
    for_each([](Gradients& of) {
      if (std::exchange(of.is_plain_, false)) of.carry_scale_ = true;
    });
  }
  void change_to(at::Tensor scale, at::Tensor tracker) {
    auto const ratio = scale.div(scale_);
    Known known;
    for_each_parameter(known, &Gradients::is_plain_, [](Gradients const&, at::Tensor const&) {
    });  // another optimizer over them does not hold them in the scale
    for_each_parameter(known, &Gradients::carry_scale_, [&](Gradients const& of, at::Tensor const& parameter) {
      if (!of.scale_ || !of.scale_(parameter, ratio)) multiply(parameter.grad(), ratio);
    });
    scale_ = std::move(scale);
    growth_tracker_ = std::move(tracker);
  }
  static void multiply(at::Tensor const& gradient, at::Tensor const& factor) {
    if (gradient.defined()) gradient.mul_(factor.to(gradient.device()));
  }

  /// Divides by the scale, if they carry it. The result, on the device of the first: above 0 if one is not finite.
  at::Tensor unscale(std::vector<at::Tensor> const& gradients, bool carry_scale) const {
    struct Kind {
      at::Device device;
      at::ScalarType dtype;
      std::vector<at::Tensor> values;
    };
    std::vector<Kind> kinds;  // a call each
    for (auto const& gradient : gradients) {
      if (gradient.scalar_type() == at::kHalf)
        fail<ConfigurationError>("weft: a gradient of shape ", gradient.sizes(),
                                 " is of fp16 and cannot be unscaled: what is below 2^-24 without the scale would "
                                 "vanish; keep the parameter in fp32 "
                                 "(Fp16Mixed computes in fp16 all the same)");
      auto const values = gradient.is_sparse() ? gradient._values() : gradient;
      auto kind = std::find_if(kinds.begin(), kinds.end(), [&](Kind const& other) {
        return other.device == values.device() && other.dtype == values.scalar_type();
      });
      if (kind == kinds.end()) kind = kinds.insert(kind, {values.device(), values.scalar_type(), {}});
      kind->values.push_back(values);
    }
    auto const inverse = carry_scale ? scale_.to(at::kDouble).reciprocal().to(at::kFloat)
                                     : at::ones({}, scale_.options());
    at::Tensor found = at::zeros({1}, scale_.options());
    for (auto const& kind : kinds) {
      auto here = at::zeros({1}, scale_.options().device(kind.device));
      at::_amp_foreach_non_finite_check_and_unscale_(kind.values, here, inverse.to(kind.device));
      found.add_(here.to(found.device()));
    }
    return found;
  }

  LossScaling how_;
  at::Tensor scale_, growth_tracker_;
  at::Tensor found_;  // over the optimizers that stepped since the last update; undefined: none did
  std::vector<std::weak_ptr<Gradients>> watched_;
  bool is_in_backward_ = false;
};

}  // namespace weft::precision
