// nn/convolution.hpp -- convolutions.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/conv.h>

#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

using Conv1d = unit::Holder<torch::nn::Conv1dImpl>;
using Conv2d = unit::Holder<torch::nn::Conv2dImpl>;
using Conv3d = unit::Holder<torch::nn::Conv3dImpl>;
using ConvTranspose1d = unit::Holder<torch::nn::ConvTranspose1dImpl>;
using ConvTranspose2d = unit::Holder<torch::nn::ConvTranspose2dImpl>;
using ConvTranspose3d = unit::Holder<torch::nn::ConvTranspose3dImpl>;

using torch::nn::Conv1dOptions;
using torch::nn::Conv2dOptions;
using torch::nn::Conv3dOptions;
using torch::nn::ConvTranspose1dOptions;
using torch::nn::ConvTranspose2dOptions;
using torch::nn::ConvTranspose3dOptions;

}  // namespace weft::nn
