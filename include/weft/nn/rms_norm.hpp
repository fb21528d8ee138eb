// nn/rms_norm.hpp -- root mean square norm, which LibTorch has no module for.
// In: x of any shape with dim features last. Out: x divided by its root mean square, times a weight.
#pragma once

#include <cstdint>
#include <ostream>

#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>

#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

struct RMSNormOptions {
  /* implicit */ RMSNormOptions(int64_t dim) : dim_(dim) {}

  TORCH_ARG(int64_t, dim);
  TORCH_ARG(double, eps) = 1e-5;
  TORCH_ARG(bool, elementwise_affine) = true;
};

struct RMSNormImpl : torch::nn::Cloneable<RMSNormImpl> {
  explicit RMSNormImpl(RMSNormOptions const& chosen) : options(chosen) { reset(); }

  void reset() override;
  void reset_parameters() {
    if (weight.defined()) torch::nn::init::ones_(weight);
  }
  void pretty_print(std::ostream& stream) const override {
    stream << "weft::nn::RMSNorm(" << options.dim() << ", eps=" << options.eps()
           << ", elementwise_affine=" << (options.elementwise_affine() ? "true" : "false") << ")";
  }

  // In this order, which the peers in Python have: results are compared bit by bit.
  at::Tensor forward(at::Tensor const& x);

  RMSNormOptions options;
  at::Tensor weight;
};
WEFT_MODULE(RMSNorm);

}  // namespace weft::nn

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/nn/rms_norm.ipp>
#endif
