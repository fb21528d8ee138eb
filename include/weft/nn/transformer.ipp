// nn/transformer.ipp -- definitions of nn/transformer.hpp.
#pragma once

#include <weft/core/build.hpp>
#include <weft/nn/transformer.hpp>

namespace weft::inline v0::nn {

WEFT_INLINE void TransformerImpl::reset() {
  encoder = options.custom_encoder().is_empty()
                ? make<TransformerEncoder, TransformerEncoderOptions, TransformerEncoderLayerOptions>(
                      options.num_encoder_layers())
                : options.custom_encoder().clone();
  register_module("encoder", encoder.ptr());
  decoder = options.custom_decoder().is_empty()
                ? make<TransformerDecoder, TransformerDecoderOptions, TransformerDecoderLayerOptions>(
                      options.num_decoder_layers())
                : options.custom_decoder().clone();
  register_module("decoder", decoder.ptr());
  reset_parameters();
}

WEFT_INLINE at::Tensor TransformerImpl::forward(at::Tensor const& src, at::Tensor const& tgt,
                                                at::Tensor const& src_mask, at::Tensor const& tgt_mask,
                                                at::Tensor const& memory_mask, at::Tensor const& src_key_padding_mask,
                                                at::Tensor const& tgt_key_padding_mask,
                                                at::Tensor const& memory_key_padding_mask) {
  TORCH_CHECK(src.dim() == 3 && tgt.dim() == 3, "src and tgt should have 3 dimensions, but got ", src.dim(), " and ",
              tgt.dim());
  TORCH_CHECK(src.size(1) == tgt.size(1), "src and tgt should have equal batch size (at dim 1), but got ", src.size(1),
              " and ", tgt.size(1));
  TORCH_CHECK(src.size(2) == options.d_model() && tgt.size(2) == options.d_model(),
              "src and tgt should have same feature size as d_model (at dim 2), but got ", src.size(2), " and ",
              tgt.size(2), " while d_model is ", options.d_model());
  auto const memory = encoder.forward<at::Tensor>(src, src_mask, src_key_padding_mask);
  return decoder.forward<at::Tensor>(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask);
}

}  // namespace weft::nn
