// nn/normalization.hpp -- normalization over features, groups and batches.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include <weft/unit/batch_statistics.hpp>
#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

/// LibTorch's BatchNorm, which may be told in place to take its statistics from elsewhere: a member of a module, a
/// holder in a list and the registry all mean the same layer, so putting another one into the registry would leave the
/// member behind.
template <class Layer>
class BatchNormOf : public Layer, public unit::HasBatchStatistics {
 public:
  using Layer::Layer;

  at::Tensor forward(at::Tensor const& input) {
    if (!statistics || !this->is_training()) return Layer::forward(input);
    this->_check_input_dim(input);
    auto const& momentum = this->options.momentum();
    double factor = momentum.value_or(0.0);
    if (this->num_batches_tracked.defined()) {
      this->num_batches_tracked += 1;
      if (!momentum)
        factor = 1.0 / this->num_batches_tracked.template item<double>();  // the average of all batches so far
    }
    return statistics->normalize(input, this->weight, this->bias, this->running_mean, this->running_var, factor,
                                 this->options.eps());
  }
};
struct BatchNorm1dImpl : BatchNormOf<torch::nn::BatchNorm1dImpl> {
  using BatchNormOf::BatchNormOf;
};
struct BatchNorm2dImpl : BatchNormOf<torch::nn::BatchNorm2dImpl> {
  using BatchNormOf::BatchNormOf;
};
struct BatchNorm3dImpl : BatchNormOf<torch::nn::BatchNorm3dImpl> {
  using BatchNormOf::BatchNormOf;
};

using LayerNorm = unit::Holder<torch::nn::LayerNormImpl>;
using GroupNorm = unit::Holder<torch::nn::GroupNormImpl>;
using LocalResponseNorm = unit::Holder<torch::nn::LocalResponseNormImpl>;
using CrossMapLRN2d = unit::Holder<torch::nn::CrossMapLRN2dImpl>;
using BatchNorm1d = unit::Holder<BatchNorm1dImpl>;
using BatchNorm2d = unit::Holder<BatchNorm2dImpl>;
using BatchNorm3d = unit::Holder<BatchNorm3dImpl>;
using InstanceNorm1d = unit::Holder<torch::nn::InstanceNorm1dImpl>;
using InstanceNorm2d = unit::Holder<torch::nn::InstanceNorm2dImpl>;
using InstanceNorm3d = unit::Holder<torch::nn::InstanceNorm3dImpl>;

using torch::nn::BatchNorm1dOptions;
using torch::nn::BatchNorm2dOptions;
using torch::nn::BatchNorm3dOptions;
using torch::nn::CrossMapLRN2dOptions;
using torch::nn::GroupNormOptions;
using torch::nn::InstanceNorm1dOptions;
using torch::nn::InstanceNorm2dOptions;
using torch::nn::InstanceNorm3dOptions;
using torch::nn::LayerNormOptions;
using torch::nn::LocalResponseNormOptions;

}  // namespace weft::nn
