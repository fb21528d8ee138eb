// nn/dropout.hpp -- dropout.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/dropout.h>

#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

using Dropout = unit::Holder<torch::nn::DropoutImpl>;
using Dropout2d = unit::Holder<torch::nn::Dropout2dImpl>;
using Dropout3d = unit::Holder<torch::nn::Dropout3dImpl>;
using AlphaDropout = unit::Holder<torch::nn::AlphaDropoutImpl>;
using FeatureAlphaDropout = unit::Holder<torch::nn::FeatureAlphaDropoutImpl>;

using torch::nn::AlphaDropoutOptions;
using torch::nn::Dropout2dOptions;
using torch::nn::Dropout3dOptions;
using torch::nn::DropoutOptions;
using torch::nn::FeatureAlphaDropoutOptions;

}  // namespace weft::nn
