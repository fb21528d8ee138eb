// nn/linear.hpp -- linear layers and layers that only reshape.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/linear.h>

#include <weft/unit/unit.hpp>

namespace weft::nn {

WEFT_MODULE_IMPL(Linear, torch::nn::LinearImpl);
WEFT_MODULE_IMPL(Bilinear, torch::nn::BilinearImpl);
WEFT_MODULE_IMPL(Identity, torch::nn::IdentityImpl);
WEFT_MODULE_IMPL(Flatten, torch::nn::FlattenImpl);
WEFT_MODULE_IMPL(Unflatten, torch::nn::UnflattenImpl);

using torch::nn::LinearOptions;
using torch::nn::BilinearOptions;
using torch::nn::FlattenOptions;
using torch::nn::UnflattenOptions;

}  // namespace weft::nn
