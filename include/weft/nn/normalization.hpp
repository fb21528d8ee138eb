// nn/normalization.hpp -- normalisation over features, groups and batches.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include <weft/unit/unit.hpp>

namespace weft::nn {

using LayerNorm = unit::Holder<torch::nn::LayerNormImpl>;
using GroupNorm = unit::Holder<torch::nn::GroupNormImpl>;
using LocalResponseNorm = unit::Holder<torch::nn::LocalResponseNormImpl>;
using CrossMapLRN2d = unit::Holder<torch::nn::CrossMapLRN2dImpl>;
using BatchNorm1d = unit::Holder<torch::nn::BatchNorm1dImpl>;
using BatchNorm2d = unit::Holder<torch::nn::BatchNorm2dImpl>;
using BatchNorm3d = unit::Holder<torch::nn::BatchNorm3dImpl>;
using InstanceNorm1d = unit::Holder<torch::nn::InstanceNorm1dImpl>;
using InstanceNorm2d = unit::Holder<torch::nn::InstanceNorm2dImpl>;
using InstanceNorm3d = unit::Holder<torch::nn::InstanceNorm3dImpl>;

using torch::nn::LayerNormOptions;
using torch::nn::GroupNormOptions;
using torch::nn::LocalResponseNormOptions;
using torch::nn::CrossMapLRN2dOptions;
using torch::nn::BatchNorm1dOptions;
using torch::nn::BatchNorm2dOptions;
using torch::nn::BatchNorm3dOptions;
using torch::nn::InstanceNorm1dOptions;
using torch::nn::InstanceNorm2dOptions;
using torch::nn::InstanceNorm3dOptions;

}  // namespace weft::nn
