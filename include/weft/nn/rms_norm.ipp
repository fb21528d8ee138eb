// nn/rms_norm.ipp -- definitions of nn/rms_norm.hpp.
#pragma once

#include <weft/nn/rms_norm.hpp>

#include <ATen/ops/mean.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::nn {

WEFT_INLINE void RMSNormImpl::reset() {
  weight = register_parameter("weight", options.elementwise_affine() ? at::ones({options.dim()}) : at::Tensor(),
                              /*requires_grad=*/options.elementwise_affine());
}

WEFT_INLINE at::Tensor RMSNormImpl::forward(at::Tensor const& x) {
  auto const normed = x * at::rsqrt(x.pow(2).mean(-1, /*keepdim=*/true) + options.eps());
  return weight.defined() ? normed * weight : normed;
}

}  // namespace weft::nn
