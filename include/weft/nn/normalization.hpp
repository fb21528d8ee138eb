// nn/normalization.hpp -- normalisation over features, groups and batches.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include <weft/unit/unit.hpp>

namespace weft::nn {

WEFT_MODULE_IMPL(LayerNorm, torch::nn::LayerNormImpl);
WEFT_MODULE_IMPL(GroupNorm, torch::nn::GroupNormImpl);
WEFT_MODULE_IMPL(LocalResponseNorm, torch::nn::LocalResponseNormImpl);
WEFT_MODULE_IMPL(CrossMapLRN2d, torch::nn::CrossMapLRN2dImpl);
WEFT_MODULE_IMPL(BatchNorm1d, torch::nn::BatchNorm1dImpl);
WEFT_MODULE_IMPL(BatchNorm2d, torch::nn::BatchNorm2dImpl);
WEFT_MODULE_IMPL(BatchNorm3d, torch::nn::BatchNorm3dImpl);
WEFT_MODULE_IMPL(InstanceNorm1d, torch::nn::InstanceNorm1dImpl);
WEFT_MODULE_IMPL(InstanceNorm2d, torch::nn::InstanceNorm2dImpl);
WEFT_MODULE_IMPL(InstanceNorm3d, torch::nn::InstanceNorm3dImpl);

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
