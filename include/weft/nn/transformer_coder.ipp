// nn/transformer_coder.ipp -- definitions of nn/transformer_coder.hpp.
#pragma once

#include <weft/nn/transformer_coder.hpp>

#include <weft/core/build.hpp>

namespace weft::inline v0::nn {

WEFT_INLINE TransformerEncoderOptions::TransformerEncoderOptions(torch::nn::TransformerEncoderOptions const& options)
    : TransformerEncoderOptions(options.encoder_layer()->options, options.num_layers()) {
  detail::copy_parameters(*options.encoder_layer(), *encoder_layer_);
  norm_ = options.norm();
}

WEFT_INLINE TransformerDecoderOptions::TransformerDecoderOptions(torch::nn::TransformerDecoderOptions const& options)
    : TransformerDecoderOptions(options.decoder_layer()->options, options.num_layers()) {
  detail::copy_parameters(*options.decoder_layer(), *decoder_layer_);
  norm_ = options.norm();
}

WEFT_INLINE at::Tensor TransformerDecoderImpl::forward(at::Tensor const& tgt, at::Tensor const& memory,
                                                       at::Tensor const& tgt_mask, at::Tensor const& memory_mask,
                                                       at::Tensor const& tgt_key_padding_mask,
                                                       at::Tensor const& memory_key_padding_mask) {
  return run_layers(tgt, [&](TransformerDecoderLayer& here, at::Tensor const& x) {
    return here(x, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask);
  });
}

}  // namespace weft::nn
