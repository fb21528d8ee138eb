// nn/image.hpp -- padding, folding and resampling.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/fold.h>
#include <torch/nn/modules/padding.h>
#include <torch/nn/modules/pixelshuffle.h>
#include <torch/nn/modules/upsampling.h>

#include <weft/unit/unit.hpp>

namespace weft::nn {

WEFT_MODULE_IMPL(ReflectionPad1d, torch::nn::ReflectionPad1dImpl);
WEFT_MODULE_IMPL(ReflectionPad2d, torch::nn::ReflectionPad2dImpl);
WEFT_MODULE_IMPL(ReflectionPad3d, torch::nn::ReflectionPad3dImpl);
WEFT_MODULE_IMPL(ReplicationPad1d, torch::nn::ReplicationPad1dImpl);
WEFT_MODULE_IMPL(ReplicationPad2d, torch::nn::ReplicationPad2dImpl);
WEFT_MODULE_IMPL(ReplicationPad3d, torch::nn::ReplicationPad3dImpl);
WEFT_MODULE_IMPL(ZeroPad1d, torch::nn::ZeroPad1dImpl);
WEFT_MODULE_IMPL(ZeroPad2d, torch::nn::ZeroPad2dImpl);
WEFT_MODULE_IMPL(ZeroPad3d, torch::nn::ZeroPad3dImpl);
WEFT_MODULE_IMPL(ConstantPad1d, torch::nn::ConstantPad1dImpl);
WEFT_MODULE_IMPL(ConstantPad2d, torch::nn::ConstantPad2dImpl);
WEFT_MODULE_IMPL(ConstantPad3d, torch::nn::ConstantPad3dImpl);
WEFT_MODULE_IMPL(Fold, torch::nn::FoldImpl);
WEFT_MODULE_IMPL(Unfold, torch::nn::UnfoldImpl);
WEFT_MODULE_IMPL(PixelShuffle, torch::nn::PixelShuffleImpl);
WEFT_MODULE_IMPL(PixelUnshuffle, torch::nn::PixelUnshuffleImpl);
WEFT_MODULE_IMPL(Upsample, torch::nn::UpsampleImpl);

using torch::nn::ReflectionPad1dOptions;
using torch::nn::ReflectionPad2dOptions;
using torch::nn::ReflectionPad3dOptions;
using torch::nn::ReplicationPad1dOptions;
using torch::nn::ReplicationPad2dOptions;
using torch::nn::ReplicationPad3dOptions;
using torch::nn::ZeroPad1dOptions;
using torch::nn::ZeroPad2dOptions;
using torch::nn::ZeroPad3dOptions;
using torch::nn::ConstantPad1dOptions;
using torch::nn::ConstantPad2dOptions;
using torch::nn::ConstantPad3dOptions;
using torch::nn::FoldOptions;
using torch::nn::UnfoldOptions;
using torch::nn::PixelShuffleOptions;
using torch::nn::PixelUnshuffleOptions;
using torch::nn::UpsampleOptions;

}  // namespace weft::nn
