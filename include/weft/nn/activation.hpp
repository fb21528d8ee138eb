// nn/activation.hpp -- activations.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/activation.h>

#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

using ReLU = unit::Holder<torch::nn::ReLUImpl>;
using ReLU6 = unit::Holder<torch::nn::ReLU6Impl>;
using LeakyReLU = unit::Holder<torch::nn::LeakyReLUImpl>;
using PReLU = unit::Holder<torch::nn::PReLUImpl>;
using RReLU = unit::Holder<torch::nn::RReLUImpl>;
using ELU = unit::Holder<torch::nn::ELUImpl>;
using SELU = unit::Holder<torch::nn::SELUImpl>;
using CELU = unit::Holder<torch::nn::CELUImpl>;
using GELU = unit::Holder<torch::nn::GELUImpl>;
using GLU = unit::Holder<torch::nn::GLUImpl>;
using SiLU = unit::Holder<torch::nn::SiLUImpl>;
using Mish = unit::Holder<torch::nn::MishImpl>;
using Sigmoid = unit::Holder<torch::nn::SigmoidImpl>;
using LogSigmoid = unit::Holder<torch::nn::LogSigmoidImpl>;
using Tanh = unit::Holder<torch::nn::TanhImpl>;
using Tanhshrink = unit::Holder<torch::nn::TanhshrinkImpl>;
using Hardtanh = unit::Holder<torch::nn::HardtanhImpl>;
using Hardshrink = unit::Holder<torch::nn::HardshrinkImpl>;
using Softshrink = unit::Holder<torch::nn::SoftshrinkImpl>;
using Softplus = unit::Holder<torch::nn::SoftplusImpl>;
using Softsign = unit::Holder<torch::nn::SoftsignImpl>;
using Softmax = unit::Holder<torch::nn::SoftmaxImpl>;
using Softmin = unit::Holder<torch::nn::SoftminImpl>;
using LogSoftmax = unit::Holder<torch::nn::LogSoftmaxImpl>;
using Softmax2d = unit::Holder<torch::nn::Softmax2dImpl>;
using Threshold = unit::Holder<torch::nn::ThresholdImpl>;

using torch::nn::CELUOptions;
using torch::nn::ELUOptions;
using torch::nn::GELUOptions;
using torch::nn::GLUOptions;
using torch::nn::HardshrinkOptions;
using torch::nn::HardtanhOptions;
using torch::nn::LeakyReLUOptions;
using torch::nn::LogSoftmaxOptions;
using torch::nn::PReLUOptions;
using torch::nn::ReLU6Options;
using torch::nn::ReLUOptions;
using torch::nn::RReLUOptions;
using torch::nn::SELUOptions;
using torch::nn::SoftmaxOptions;
using torch::nn::SoftminOptions;
using torch::nn::SoftplusOptions;
using torch::nn::SoftshrinkOptions;
using torch::nn::ThresholdOptions;

}  // namespace weft::nn
