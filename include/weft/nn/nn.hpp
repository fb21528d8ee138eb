// nn/nn.hpp -- all of weft::nn.
// In: nothing. Out: LibTorch's layers as units, RMSNorm, and the Transformers that LibTorch hard-wires.
#pragma once

#include <weft/nn/layers.hpp>
#include <weft/nn/transformer.hpp>
#include <weft/nn/transformer_coder.hpp>
#include <weft/nn/transformer_layer.hpp>
