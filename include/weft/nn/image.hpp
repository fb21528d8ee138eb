// nn/image.hpp -- padding, folding and resampling.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/fold.h>
#include <torch/nn/modules/padding.h>
#include <torch/nn/modules/pixelshuffle.h>
#include <torch/nn/modules/upsampling.h>

#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

using ReflectionPad1d = unit::Holder<torch::nn::ReflectionPad1dImpl>;
using ReflectionPad2d = unit::Holder<torch::nn::ReflectionPad2dImpl>;
using ReflectionPad3d = unit::Holder<torch::nn::ReflectionPad3dImpl>;
using ReplicationPad1d = unit::Holder<torch::nn::ReplicationPad1dImpl>;
using ReplicationPad2d = unit::Holder<torch::nn::ReplicationPad2dImpl>;
using ReplicationPad3d = unit::Holder<torch::nn::ReplicationPad3dImpl>;
using ZeroPad1d = unit::Holder<torch::nn::ZeroPad1dImpl>;
using ZeroPad2d = unit::Holder<torch::nn::ZeroPad2dImpl>;
using ZeroPad3d = unit::Holder<torch::nn::ZeroPad3dImpl>;
using ConstantPad1d = unit::Holder<torch::nn::ConstantPad1dImpl>;
using ConstantPad2d = unit::Holder<torch::nn::ConstantPad2dImpl>;
using ConstantPad3d = unit::Holder<torch::nn::ConstantPad3dImpl>;
using Fold = unit::Holder<torch::nn::FoldImpl>;
using Unfold = unit::Holder<torch::nn::UnfoldImpl>;
using PixelShuffle = unit::Holder<torch::nn::PixelShuffleImpl>;
using PixelUnshuffle = unit::Holder<torch::nn::PixelUnshuffleImpl>;
using Upsample = unit::Holder<torch::nn::UpsampleImpl>;

using torch::nn::ConstantPad1dOptions;
using torch::nn::ConstantPad2dOptions;
using torch::nn::ConstantPad3dOptions;
using torch::nn::FoldOptions;
using torch::nn::PixelShuffleOptions;
using torch::nn::PixelUnshuffleOptions;
using torch::nn::ReflectionPad1dOptions;
using torch::nn::ReflectionPad2dOptions;
using torch::nn::ReflectionPad3dOptions;
using torch::nn::ReplicationPad1dOptions;
using torch::nn::ReplicationPad2dOptions;
using torch::nn::ReplicationPad3dOptions;
using torch::nn::UnfoldOptions;
using torch::nn::UpsampleOptions;
using torch::nn::ZeroPad1dOptions;
using torch::nn::ZeroPad2dOptions;
using torch::nn::ZeroPad3dOptions;

}  // namespace weft::nn
