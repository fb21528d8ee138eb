// optim/clip.ipp -- definitions of optim/clip.hpp.
#pragma once

#include <weft/optim/clip.hpp>

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::optim {

WEFT_INLINE std::vector<at::Tensor> gradients_of(std::vector<at::Tensor> const& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (at::Tensor const& parameter : parameters) {
    at::Tensor const& gradient = parameter.grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    if (gradient.layout() != at::kStrided)
      fail<Error>("weft: clip_gradients: a gradient has layout ", gradient.layout(),
                  ": only dense gradients can be clipped");
    gradients.push_back(gradient);
  }
  return gradients;
}

WEFT_INLINE void check(ClipNorm const& clip) {
  if (!(clip.max_norm >= 0))
    fail<ConfigurationError>("weft: ClipNorm: .max_norm = ", clip.max_norm, ": give a number of at least 0");
  if (!(clip.norm_type > 0))
    fail<ConfigurationError>("weft: ClipNorm: .norm_type = ", clip.norm_type, ": give a number above 0, or infinity");
}

WEFT_INLINE at::Tensor partial_norm(std::vector<at::Tensor> const& gradients, double norm_type) {
  at::NoGradGuard no_grad;
  at::Device const device = gradients.empty() ? at::Device(at::kCPU) : gradients.front().device();
  auto const options = at::TensorOptions().dtype(at::kDouble).device(device);
  if (gradients.empty()) return at::zeros({}, options);
  // A half-precision norm would overflow at 65504: bf16 and fp16 are summed in fp32.
  bool const reduced = std::any_of(gradients.begin(), gradients.end(),
                                   [](at::Tensor const& g) { return c10::isReducedFloatingType(g.scalar_type()); });
  std::vector<at::Tensor> norms;
  if (!reduced) {
    norms = at::_foreach_norm(gradients, norm_type);
  } else {
    norms.reserve(gradients.size());
    for (at::Tensor const& gradient : gradients)
      norms.push_back(c10::isReducedFloatingType(gradient.scalar_type()) ? gradient.norm(norm_type, at::kFloat)
                                                                         : gradient.norm(norm_type));
  }
  bool const largest = std::isinf(norm_type);
  if (device.is_cpu()) {  // a few hundred numbers: a loop is shorter than three operations
    double total = 0;
    for (at::Tensor const& norm : norms) {
      double const value = norm.scalar_type() == at::kFloat ? *norm.const_data_ptr<float>() : norm.item<double>();
      if (largest)
        total = std::isnan(value) || value > total ? value : total;
      else
        total += norm_type == 2.0 ? value * value : std::pow(value, norm_type);
      if (std::isnan(total)) break;
    }
    return at::full({}, total, options);
  }
  for (at::Tensor& norm : norms) norm = norm.to(options);
  at::Tensor const stacked = at::stack(norms);
  return largest ? stacked.max() : stacked.pow(norm_type).sum();
}

WEFT_INLINE at::ScalarType norm_dtype(std::vector<at::Tensor> const& gradients) {
  return std::any_of(gradients.begin(), gradients.end(),
                     [](at::Tensor const& g) { return g.scalar_type() == at::kDouble; })
             ? at::kDouble
             : at::kFloat;
}

WEFT_INLINE void scale_gradients(std::vector<at::Tensor> const& gradients, at::Tensor const& norm,
                                 ClipNorm const& clip) {
  if (gradients.empty()) return;
  at::NoGradGuard no_grad;
  bool const readable = norm.device().is_cpu() ||
                        clip.error_if_nonfinite;  // reading waits for the device; then it is done only where it must be
  if (clip.error_if_nonfinite && !std::isfinite(norm.item<double>()))
    fail<Error>("weft: clip_gradients: the norm of order ", clip.norm_type, " is ", norm.item<double>(),
                ": gradients are not finite and were left as they are; ClipNorm{.error_if_nonfinite = false} scales "
                "them all the same");
  at::Tensor factor = norm.add(1e-6).reciprocal().mul(clip.max_norm);
  if (readable) {
    if (factor.item<double>() >= 1.0) return;
  } else {
    factor = factor.clamp_max(1.0);
  }
  at::_foreach_mul_(gradients, factor);
}

WEFT_INLINE at::Tensor clip(std::vector<at::Tensor> const& parameters, ClipNorm const& clip) {
  check(clip);
  std::vector<at::Tensor> const gradients = gradients_of(parameters);
  at::NoGradGuard no_grad;
  at::Tensor const norm = norm_of(partial_norm(gradients, clip.norm_type), clip.norm_type).to(norm_dtype(gradients));
  scale_gradients(gradients, norm, clip);
  return norm;
}

WEFT_INLINE void clip(std::vector<at::Tensor> const& parameters, ClipValue const& clip) {
  check(clip);
  std::vector<at::Tensor> const gradients = gradients_of(parameters);
  if (gradients.empty()) return;
  at::NoGradGuard no_grad;
  at::_foreach_clamp_min_(gradients, -clip.limit);
  at::_foreach_clamp_max_(gradients, clip.limit);
}

}  // namespace weft::optim
