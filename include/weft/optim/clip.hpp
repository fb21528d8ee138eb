// optim/clip.hpp -- gradients kept within a bound.
// In: parameters with gradients. Out: the norm they had, and gradients scaled by max_norm / norm, or cut at a value.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <weft/core/error.hpp>

namespace weft::inline v0 {

// clip_gradients(..., ClipNorm{1.0}): all gradients together have at most this norm.
struct ClipNorm {
  double max_norm;
  double norm_type = 2.0;  // 1, 2, 0.5, ...; infinity is the largest absolute value
  bool error_if_nonfinite = true;
  bool operator==(ClipNorm const&) const = default;
};

// clip_gradients(..., ClipValue{0.5}): each element lies in [-limit, limit].
struct ClipValue {
  double limit;
  bool operator==(ClipValue const&) const = default;
};

namespace optim {

// [Note: clipping in three parts] partial_norm is a sum over what this rank holds, and sums of ranks add up (maxima
// have a maximum); norm_of takes the root once all is in; scale_gradients changes gradients. Strategies that shard put
// their reduction between the first and the second; a root taken per rank would clip by the wrong norm (known faults
// NUM-10, NUM-11).

// The gradients there are to clip.
inline std::vector<at::Tensor> gradients_of(std::vector<at::Tensor> const& parameters) {
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

inline void check(ClipNorm const& clip) {
  if (!(clip.max_norm >= 0))
    fail<ConfigurationError>("weft: ClipNorm: .max_norm = ", clip.max_norm, ": give a number of at least 0");
  if (!(clip.norm_type > 0))
    fail<ConfigurationError>("weft: ClipNorm: .norm_type = ", clip.norm_type, ": give a number above 0, or infinity");
}
inline void check(ClipValue const& clip) {
  if (!(clip.limit >= 0))
    fail<ConfigurationError>("weft: ClipValue: .limit = ", clip.limit, ": give a number of at least 0");
}

// Sum of |g|^norm_type, or the largest |g| for infinity: fp64, 0-dim, on the first gradient's device; 0 if there are
// none.
inline at::Tensor partial_norm(std::vector<at::Tensor> const& gradients, double norm_type) {
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

// The norm whose partial_norm, over all ranks, is total.
inline at::Tensor norm_of(at::Tensor const& total, double norm_type) {
  if (std::isinf(norm_type) || norm_type == 1.0) return total;
  return norm_type == 2.0 ? total.sqrt() : total.pow(1.0 / norm_type);
}

// fp32, or fp64 if a gradient is: what torch::nn::utils::clip_grad_norm_ computes with.
inline at::ScalarType norm_dtype(std::vector<at::Tensor> const& gradients) {
  return std::any_of(gradients.begin(), gradients.end(),
                     [](at::Tensor const& g) { return g.scalar_type() == at::kDouble; })
             ? at::kDouble
             : at::kFloat;
}

// Scales by max_norm / (norm + 1e-6) where that is below 1, else leaves the gradients' bits alone.
inline void scale_gradients(std::vector<at::Tensor> const& gradients, at::Tensor const& norm, ClipNorm const& clip) {
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

inline at::Tensor clip(std::vector<at::Tensor> const& parameters, ClipNorm const& clip) {
  check(clip);
  std::vector<at::Tensor> const gradients = gradients_of(parameters);
  at::NoGradGuard no_grad;
  at::Tensor const norm = norm_of(partial_norm(gradients, clip.norm_type), clip.norm_type).to(norm_dtype(gradients));
  scale_gradients(gradients, norm, clip);
  return norm;
}

inline void clip(std::vector<at::Tensor> const& parameters, ClipValue const& clip) {
  check(clip);
  std::vector<at::Tensor> const gradients = gradients_of(parameters);
  if (gradients.empty()) return;
  at::NoGradGuard no_grad;
  at::_foreach_clamp_min_(gradients, -clip.limit);
  at::_foreach_clamp_max_(gradients, clip.limit);
}

}  // namespace optim
}  // namespace weft
