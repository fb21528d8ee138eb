// nn/nn.hpp -- all of weft::nn.
// In: nothing. Out: LibTorch's layers as units, the compositions that LibTorch hard-wires, and RMSNorm.
#pragma once

#include <weft/nn/activation.hpp>
#include <weft/nn/attention.hpp>
#include <weft/nn/convolution.hpp>
#include <weft/nn/dropout.hpp>
#include <weft/nn/embedding.hpp>
#include <weft/nn/image.hpp>
#include <weft/nn/linear.hpp>
#include <weft/nn/normalization.hpp>
#include <weft/nn/pooling.hpp>
#include <weft/nn/recurrent.hpp>
#include <weft/nn/rms_norm.hpp>
#include <weft/nn/transformer.hpp>
#include <weft/nn/transformer_coder.hpp>
#include <weft/nn/transformer_layer.hpp>
