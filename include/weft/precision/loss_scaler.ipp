// precision/loss_scaler.ipp -- definitions of precision/loss_scaler.hpp.
#pragma once

#include <weft/precision/loss_scaler.hpp>

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::precision {

WEFT_INLINE bool LossScaler::Gradients::unscale() {
  if (!is_plain_) {
    at::NoGradGuard const no_grad;
    found_ = scaler_->unscale(gradients(), carry_scale_);
    if (agree_) agree_(found_);
    is_plain_ = true;
    carry_scale_ = false;
  }
  return found_.item<float>() == 0;
}

WEFT_INLINE LossScaler::Gradients::Gradients(std::shared_ptr<LossScaler> scaler,
                                             std::function<std::vector<at::Tensor>()> parameters, Agree agree,
                                             Scale scale)
    : scaler_(std::move(scaler)),
      parameters_(std::move(parameters)),
      agree_(std::move(agree)),
      scale_(std::move(scale)) {}

WEFT_INLINE std::vector<at::Tensor> LossScaler::Gradients::gradients() const {
  std::vector<at::Tensor> all;
  for (auto const& parameter : parameters_())
    if (auto const& gradient = parameter.grad(); gradient.defined()) all.push_back(gradient);
  return all;
}

WEFT_INLINE LossScaler::LossScaler(LossScaling const& how, at::Device device)
    : how_(checked(how)),
      scale_(at::full({}, how.initial_scale, at::TensorOptions().dtype(at::kFloat).device(device))),
      growth_tracker_(at::zeros({}, at::TensorOptions().dtype(at::kInt).device(device))) {}

WEFT_INLINE auto LossScaler::watch(std::function<std::vector<at::Tensor>()> parameters, Agree agree, Scale scale)
    -> std::shared_ptr<Gradients> {
  std::shared_ptr<Gradients> const gradients(
      new Gradients(shared_from_this(), std::move(parameters), std::move(agree), std::move(scale)));
  std::erase_if(watched_, [](auto const& other) { return other.expired(); });
  watched_.push_back(gradients);
  return gradients;
}

WEFT_INLINE void LossScaler::backward(at::Tensor const& loss) {
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

WEFT_INLINE LossScalerState LossScaler::state() const {
  at::NoGradGuard const no_grad;
  auto const [scale, tracker] = next();
  return {scale.item<float>(), tracker.item<int>()};
}

WEFT_INLINE void LossScaler::load(LossScalerState const& state) {
  if (!is_scale(state.scale) || state.steps_since_change < 0)
    fail<ConfigurationError>("weft: LossScaler: load: a scale of ", state.scale, " after ", state.steps_since_change,
                             " steps is no state of a scaler; expected a finite scale of at least ", smallest_scale,
                             " and a count of at least 0");
  at::NoGradGuard const no_grad;
  found_.reset();
  change_to(at::full_like(scale_, state.scale), at::full_like(growth_tracker_, state.steps_since_change));
}

WEFT_INLINE LossScaling const& LossScaler::checked(LossScaling const& how) {
  auto const require = [](bool holds, char const* name, double value, char const* range) {
    if (!holds) fail<ConfigurationError>("weft: LossScaling: .", name, " = ", value, ": give a number ", range);
  };
  require(is_scale(how.initial_scale), "initial_scale", how.initial_scale, "above 0 that a float can hold");
  require(how.growth_factor > 1, "growth_factor", how.growth_factor, "above 1");
  require(how.backoff_factor > 0 && how.backoff_factor < 1, "backoff_factor", how.backoff_factor, "between 0 and 1");
  require(how.growth_interval > 0, "growth_interval", how.growth_interval, "above 0");
  return how;
}

WEFT_INLINE std::pair<at::Tensor, at::Tensor> LossScaler::next() const {
  auto scale = scale_.clone(), tracker = growth_tracker_.clone();
  if (found_.defined())
    at::_amp_update_scale_(scale, tracker, found_, how_.growth_factor, how_.backoff_factor, how_.growth_interval),
        scale.clamp_min_(smallest_scale);
  return {scale, tracker};
}

WEFT_INLINE void LossScaler::settle() {
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

WEFT_INLINE void LossScaler::change_to(at::Tensor scale, at::Tensor tracker) {
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

WEFT_INLINE at::Tensor LossScaler::unscale(std::vector<at::Tensor> const& gradients, bool carry_scale) const {
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

}  // namespace weft::precision
