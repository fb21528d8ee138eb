// nn/convolution.hpp -- convolutions.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/conv.h>

#include <weft/unit/unit.hpp>

namespace weft::nn {

WEFT_MODULE_IMPL(Conv1d, torch::nn::Conv1dImpl);
WEFT_MODULE_IMPL(Conv2d, torch::nn::Conv2dImpl);
WEFT_MODULE_IMPL(Conv3d, torch::nn::Conv3dImpl);
WEFT_MODULE_IMPL(ConvTranspose1d, torch::nn::ConvTranspose1dImpl);
WEFT_MODULE_IMPL(ConvTranspose2d, torch::nn::ConvTranspose2dImpl);
WEFT_MODULE_IMPL(ConvTranspose3d, torch::nn::ConvTranspose3dImpl);

using torch::nn::Conv1dOptions;
using torch::nn::Conv2dOptions;
using torch::nn::Conv3dOptions;
using torch::nn::ConvTranspose1dOptions;
using torch::nn::ConvTranspose2dOptions;
using torch::nn::ConvTranspose3dOptions;

}  // namespace weft::nn
