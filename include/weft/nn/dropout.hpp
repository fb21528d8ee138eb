// nn/dropout.hpp -- dropout.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/dropout.h>

#include <weft/unit/unit.hpp>

namespace weft::nn {

WEFT_MODULE_IMPL(Dropout, torch::nn::DropoutImpl);
WEFT_MODULE_IMPL(Dropout2d, torch::nn::Dropout2dImpl);
WEFT_MODULE_IMPL(Dropout3d, torch::nn::Dropout3dImpl);
WEFT_MODULE_IMPL(AlphaDropout, torch::nn::AlphaDropoutImpl);
WEFT_MODULE_IMPL(FeatureAlphaDropout, torch::nn::FeatureAlphaDropoutImpl);

using torch::nn::DropoutOptions;
using torch::nn::Dropout2dOptions;
using torch::nn::Dropout3dOptions;
using torch::nn::AlphaDropoutOptions;
using torch::nn::FeatureAlphaDropoutOptions;

}  // namespace weft::nn
