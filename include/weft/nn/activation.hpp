// nn/activation.hpp -- activations.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/activation.h>

#include <weft/unit/unit.hpp>

namespace weft::nn {

WEFT_MODULE_IMPL(ReLU, torch::nn::ReLUImpl);
WEFT_MODULE_IMPL(ReLU6, torch::nn::ReLU6Impl);
WEFT_MODULE_IMPL(LeakyReLU, torch::nn::LeakyReLUImpl);
WEFT_MODULE_IMPL(PReLU, torch::nn::PReLUImpl);
WEFT_MODULE_IMPL(RReLU, torch::nn::RReLUImpl);
WEFT_MODULE_IMPL(ELU, torch::nn::ELUImpl);
WEFT_MODULE_IMPL(SELU, torch::nn::SELUImpl);
WEFT_MODULE_IMPL(CELU, torch::nn::CELUImpl);
WEFT_MODULE_IMPL(GELU, torch::nn::GELUImpl);
WEFT_MODULE_IMPL(GLU, torch::nn::GLUImpl);
WEFT_MODULE_IMPL(SiLU, torch::nn::SiLUImpl);
WEFT_MODULE_IMPL(Mish, torch::nn::MishImpl);
WEFT_MODULE_IMPL(Sigmoid, torch::nn::SigmoidImpl);
WEFT_MODULE_IMPL(LogSigmoid, torch::nn::LogSigmoidImpl);
WEFT_MODULE_IMPL(Tanh, torch::nn::TanhImpl);
WEFT_MODULE_IMPL(Tanhshrink, torch::nn::TanhshrinkImpl);
WEFT_MODULE_IMPL(Hardtanh, torch::nn::HardtanhImpl);
WEFT_MODULE_IMPL(Hardshrink, torch::nn::HardshrinkImpl);
WEFT_MODULE_IMPL(Softshrink, torch::nn::SoftshrinkImpl);
WEFT_MODULE_IMPL(Softplus, torch::nn::SoftplusImpl);
WEFT_MODULE_IMPL(Softsign, torch::nn::SoftsignImpl);
WEFT_MODULE_IMPL(Softmax, torch::nn::SoftmaxImpl);
WEFT_MODULE_IMPL(Softmin, torch::nn::SoftminImpl);
WEFT_MODULE_IMPL(LogSoftmax, torch::nn::LogSoftmaxImpl);
WEFT_MODULE_IMPL(Softmax2d, torch::nn::Softmax2dImpl);
WEFT_MODULE_IMPL(Threshold, torch::nn::ThresholdImpl);

using torch::nn::ReLUOptions;
using torch::nn::ReLU6Options;
using torch::nn::LeakyReLUOptions;
using torch::nn::PReLUOptions;
using torch::nn::RReLUOptions;
using torch::nn::ELUOptions;
using torch::nn::SELUOptions;
using torch::nn::CELUOptions;
using torch::nn::GELUOptions;
using torch::nn::GLUOptions;
using torch::nn::HardtanhOptions;
using torch::nn::HardshrinkOptions;
using torch::nn::SoftshrinkOptions;
using torch::nn::SoftplusOptions;
using torch::nn::SoftmaxOptions;
using torch::nn::SoftminOptions;
using torch::nn::LogSoftmaxOptions;
using torch::nn::ThresholdOptions;

}  // namespace weft::nn
