// nn/linear.hpp -- linear layers and layers that only reshape.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/linear.h>

#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

using Linear = unit::Holder<torch::nn::LinearImpl>;
using Bilinear = unit::Holder<torch::nn::BilinearImpl>;
using Identity = unit::Holder<torch::nn::IdentityImpl>;
using Flatten = unit::Holder<torch::nn::FlattenImpl>;
using Unflatten = unit::Holder<torch::nn::UnflattenImpl>;

using torch::nn::BilinearOptions;
using torch::nn::FlattenOptions;
using torch::nn::LinearOptions;
using torch::nn::UnflattenOptions;

}  // namespace weft::nn
