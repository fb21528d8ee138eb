// nn/layers.hpp -- LibTorch's layers as units, and RMSNorm.
// In: nothing. Out: the part of weft::nn that costs a compiler nothing until it is used.
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
