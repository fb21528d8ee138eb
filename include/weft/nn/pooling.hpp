// nn/pooling.hpp -- pooling.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/pooling.h>

#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

using AvgPool1d = unit::Holder<torch::nn::AvgPool1dImpl>;
using AvgPool2d = unit::Holder<torch::nn::AvgPool2dImpl>;
using AvgPool3d = unit::Holder<torch::nn::AvgPool3dImpl>;
using MaxPool1d = unit::Holder<torch::nn::MaxPool1dImpl>;
using MaxPool2d = unit::Holder<torch::nn::MaxPool2dImpl>;
using MaxPool3d = unit::Holder<torch::nn::MaxPool3dImpl>;
using AdaptiveAvgPool1d = unit::Holder<torch::nn::AdaptiveAvgPool1dImpl>;
using AdaptiveAvgPool2d = unit::Holder<torch::nn::AdaptiveAvgPool2dImpl>;
using AdaptiveAvgPool3d = unit::Holder<torch::nn::AdaptiveAvgPool3dImpl>;
using AdaptiveMaxPool1d = unit::Holder<torch::nn::AdaptiveMaxPool1dImpl>;
using AdaptiveMaxPool2d = unit::Holder<torch::nn::AdaptiveMaxPool2dImpl>;
using AdaptiveMaxPool3d = unit::Holder<torch::nn::AdaptiveMaxPool3dImpl>;
using MaxUnpool1d = unit::Holder<torch::nn::MaxUnpool1dImpl>;
using MaxUnpool2d = unit::Holder<torch::nn::MaxUnpool2dImpl>;
using MaxUnpool3d = unit::Holder<torch::nn::MaxUnpool3dImpl>;
using LPPool1d = unit::Holder<torch::nn::LPPool1dImpl>;
using LPPool2d = unit::Holder<torch::nn::LPPool2dImpl>;
using LPPool3d = unit::Holder<torch::nn::LPPool3dImpl>;
using FractionalMaxPool2d = unit::Holder<torch::nn::FractionalMaxPool2dImpl>;
using FractionalMaxPool3d = unit::Holder<torch::nn::FractionalMaxPool3dImpl>;

using torch::nn::AdaptiveAvgPool1dOptions;
using torch::nn::AdaptiveAvgPool2dOptions;
using torch::nn::AdaptiveAvgPool3dOptions;
using torch::nn::AdaptiveMaxPool1dOptions;
using torch::nn::AdaptiveMaxPool2dOptions;
using torch::nn::AdaptiveMaxPool3dOptions;
using torch::nn::AvgPool1dOptions;
using torch::nn::AvgPool2dOptions;
using torch::nn::AvgPool3dOptions;
using torch::nn::FractionalMaxPool2dOptions;
using torch::nn::FractionalMaxPool3dOptions;
using torch::nn::LPPool1dOptions;
using torch::nn::LPPool2dOptions;
using torch::nn::LPPool3dOptions;
using torch::nn::MaxPool1dOptions;
using torch::nn::MaxPool2dOptions;
using torch::nn::MaxPool3dOptions;
using torch::nn::MaxUnpool1dOptions;
using torch::nn::MaxUnpool2dOptions;
using torch::nn::MaxUnpool3dOptions;

}  // namespace weft::nn
