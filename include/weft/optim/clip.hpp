// optim/clip.hpp -- gradients kept within a bound.
// In: parameters with gradients. Out: the norm they had, and gradients scaled by max_norm / norm, or cut at a value.
#pragma once

#include <cmath>
#include <vector>

#include <ATen/core/Tensor.h>

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
std::vector<at::Tensor> gradients_of(std::vector<at::Tensor> const& parameters);

void check(ClipNorm const& clip);
inline void check(ClipValue const& clip) {
  if (!(clip.limit >= 0))
    fail<ConfigurationError>("weft: ClipValue: .limit = ", clip.limit, ": give a number of at least 0");
}

// Sum of |g|^norm_type, or the largest |g| for infinity: fp64, 0-dim, on the first gradient's device; 0 if there are
// none.
at::Tensor partial_norm(std::vector<at::Tensor> const& gradients, double norm_type);

// The norm whose partial_norm, over all ranks, is total.
inline at::Tensor norm_of(at::Tensor const& total, double norm_type) {
  if (std::isinf(norm_type) || norm_type == 1.0) return total;
  return norm_type == 2.0 ? total.sqrt() : total.pow(1.0 / norm_type);
}

// fp32, or fp64 if a gradient is: what torch::nn::utils::clip_grad_norm_ computes with.
at::ScalarType norm_dtype(std::vector<at::Tensor> const& gradients);

// Scales by max_norm / (norm + 1e-6) where that is below 1, else leaves the gradients' bits alone.
void scale_gradients(std::vector<at::Tensor> const& gradients, at::Tensor const& norm, ClipNorm const& clip);

at::Tensor clip(std::vector<at::Tensor> const& parameters, ClipNorm const& clip);

void clip(std::vector<at::Tensor> const& parameters, ClipValue const& clip);

}  // namespace optim
}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/optim/clip.ipp>
#endif
