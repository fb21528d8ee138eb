// nn/pooling.hpp -- pooling.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/pooling.h>

#include <weft/unit/unit.hpp>

namespace weft::nn {

WEFT_MODULE_IMPL(AvgPool1d, torch::nn::AvgPool1dImpl);
WEFT_MODULE_IMPL(AvgPool2d, torch::nn::AvgPool2dImpl);
WEFT_MODULE_IMPL(AvgPool3d, torch::nn::AvgPool3dImpl);
WEFT_MODULE_IMPL(MaxPool1d, torch::nn::MaxPool1dImpl);
WEFT_MODULE_IMPL(MaxPool2d, torch::nn::MaxPool2dImpl);
WEFT_MODULE_IMPL(MaxPool3d, torch::nn::MaxPool3dImpl);
WEFT_MODULE_IMPL(AdaptiveAvgPool1d, torch::nn::AdaptiveAvgPool1dImpl);
WEFT_MODULE_IMPL(AdaptiveAvgPool2d, torch::nn::AdaptiveAvgPool2dImpl);
WEFT_MODULE_IMPL(AdaptiveAvgPool3d, torch::nn::AdaptiveAvgPool3dImpl);
WEFT_MODULE_IMPL(AdaptiveMaxPool1d, torch::nn::AdaptiveMaxPool1dImpl);
WEFT_MODULE_IMPL(AdaptiveMaxPool2d, torch::nn::AdaptiveMaxPool2dImpl);
WEFT_MODULE_IMPL(AdaptiveMaxPool3d, torch::nn::AdaptiveMaxPool3dImpl);
WEFT_MODULE_IMPL(MaxUnpool1d, torch::nn::MaxUnpool1dImpl);
WEFT_MODULE_IMPL(MaxUnpool2d, torch::nn::MaxUnpool2dImpl);
WEFT_MODULE_IMPL(MaxUnpool3d, torch::nn::MaxUnpool3dImpl);
WEFT_MODULE_IMPL(LPPool1d, torch::nn::LPPool1dImpl);
WEFT_MODULE_IMPL(LPPool2d, torch::nn::LPPool2dImpl);
WEFT_MODULE_IMPL(LPPool3d, torch::nn::LPPool3dImpl);
WEFT_MODULE_IMPL(FractionalMaxPool2d, torch::nn::FractionalMaxPool2dImpl);
WEFT_MODULE_IMPL(FractionalMaxPool3d, torch::nn::FractionalMaxPool3dImpl);

using torch::nn::AvgPool1dOptions;
using torch::nn::AvgPool2dOptions;
using torch::nn::AvgPool3dOptions;
using torch::nn::MaxPool1dOptions;
using torch::nn::MaxPool2dOptions;
using torch::nn::MaxPool3dOptions;
using torch::nn::AdaptiveAvgPool1dOptions;
using torch::nn::AdaptiveAvgPool2dOptions;
using torch::nn::AdaptiveAvgPool3dOptions;
using torch::nn::AdaptiveMaxPool1dOptions;
using torch::nn::AdaptiveMaxPool2dOptions;
using torch::nn::AdaptiveMaxPool3dOptions;
using torch::nn::MaxUnpool1dOptions;
using torch::nn::MaxUnpool2dOptions;
using torch::nn::MaxUnpool3dOptions;
using torch::nn::LPPool1dOptions;
using torch::nn::LPPool2dOptions;
using torch::nn::LPPool3dOptions;
using torch::nn::FractionalMaxPool2dOptions;
using torch::nn::FractionalMaxPool3dOptions;

}  // namespace weft::nn
