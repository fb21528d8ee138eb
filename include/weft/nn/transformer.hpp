// nn/transformer.hpp -- encoder and decoder together.
// In: torch::nn's options. Out: torch::nn::Transformer, built of units: same parameter names, same initial values, same
// results.
#pragma once

#include <cstdint>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/options/transformer.h>

#include <weft/nn/normalization.hpp>
#include <weft/nn/transformer_coder.hpp>
#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

using torch::nn::TransformerOptions;

struct TransformerImpl : torch::nn::Cloneable<TransformerImpl> {
  explicit TransformerImpl(TransformerOptions chosen) : options(std::move(chosen)) { reset(); }

  void reset() override {
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
  void reset_parameters() {
    for (auto& parameter : parameters())
      if (parameter.dim() > 1) torch::nn::init::xavier_uniform_(parameter);
  }

  at::Tensor forward(at::Tensor const& src, at::Tensor const& tgt, at::Tensor const& src_mask = {},
                     at::Tensor const& tgt_mask = {}, at::Tensor const& memory_mask = {},
                     at::Tensor const& src_key_padding_mask = {}, at::Tensor const& tgt_key_padding_mask = {},
                     at::Tensor const& memory_key_padding_mask = {}) {
    TORCH_CHECK(src.dim() == 3 && tgt.dim() == 3, "src and tgt should have 3 dimensions, but got ", src.dim(), " and ",
                tgt.dim());
    TORCH_CHECK(src.size(1) == tgt.size(1), "src and tgt should have equal batch size (at dim 1), but got ",
                src.size(1), " and ", tgt.size(1));
    TORCH_CHECK(src.size(2) == options.d_model() && tgt.size(2) == options.d_model(),
                "src and tgt should have same feature size as d_model (at dim 2), but got ", src.size(2), " and ",
                tgt.size(2), " while d_model is ", options.d_model());
    auto const memory = encoder.forward<at::Tensor>(src, src_mask, src_key_padding_mask);
    return decoder.forward<at::Tensor>(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask,
                                       memory_key_padding_mask);
  }

  static at::Tensor generate_square_subsequent_mask(int64_t size) {
    return torch::nn::TransformerImpl::generate_square_subsequent_mask(size);
  }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({2, torch::nn::AnyValue(at::Tensor())}, {3, torch::nn::AnyValue(at::Tensor())},
                           {4, torch::nn::AnyValue(at::Tensor())}, {5, torch::nn::AnyValue(at::Tensor())},
                           {6, torch::nn::AnyValue(at::Tensor())}, {7, torch::nn::AnyValue(at::Tensor())})

 private:
  // The norm first: construction draws random numbers in torch::nn's order.
  template <class Coder, class CoderOptions, class LayerOptions>
  torch::nn::AnyModule make(int64_t num_layers) const {
    LayerNorm const norm(LayerNormOptions({options.d_model()}));
    auto const layer = LayerOptions(options.d_model(), options.nhead())
                           .dim_feedforward(options.dim_feedforward())
                           .dropout(options.dropout())
                           .activation(options.activation());
    return torch::nn::AnyModule(Coder(CoderOptions(layer, num_layers).norm(torch::nn::AnyModule(norm))));
  }

 public:
  TransformerOptions options;
  torch::nn::AnyModule encoder;
  torch::nn::AnyModule decoder;
};
WEFT_MODULE(Transformer);

}  // namespace weft::nn
