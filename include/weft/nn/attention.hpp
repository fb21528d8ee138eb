// nn/attention.hpp -- multi-head attention.
// In: LibTorch's layer. Out: a unit that is a leaf: LibTorch's attention reads out_proj's weight and never calls it.
#pragma once

#include <torch/nn/modules/activation.h>

#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

using MultiheadAttention = unit::Holder<torch::nn::MultiheadAttentionImpl>;

using torch::nn::MultiheadAttentionOptions;

}  // namespace weft::nn
