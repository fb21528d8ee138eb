// nn/transformer_layer.hpp -- a layer of a Transformer's encoder or decoder.
// In: torch::nn's options. Out: torch::nn's layer, built of units: same parameter names, same results.
#pragma once

#include <cstdint>
#include <utility>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/options/transformerlayer.h>

#include <weft/nn/attention.hpp>
#include <weft/nn/dropout.hpp>
#include <weft/nn/linear.hpp>
#include <weft/nn/normalization.hpp>
#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

using torch::nn::TransformerDecoderLayerOptions;
using torch::nn::TransformerEncoderLayerOptions;

namespace detail {

at::Tensor activate(torch::nn::activation_t const& activation, at::Tensor const& x);

template <class Options>
MultiheadAttention attention(Options const& options) {
  return MultiheadAttention(MultiheadAttentionOptions(options.d_model(), options.nhead()).dropout(options.dropout()));
}

// A layer takes over the weights of torch::nn's layer of the same name.
void copy_parameters(torch::nn::Module const& from, torch::nn::Module& to);

}  // namespace detail

struct TransformerEncoderLayerImpl : torch::nn::Cloneable<TransformerEncoderLayerImpl> {
  TransformerEncoderLayerImpl(int64_t d_model, int64_t nhead)
      : TransformerEncoderLayerImpl(TransformerEncoderLayerOptions(d_model, nhead)) {}
  explicit TransformerEncoderLayerImpl(TransformerEncoderLayerOptions chosen) : options(std::move(chosen)) { reset(); }

  void reset() override;
  void reset_parameters() {
    self_attn->_reset_parameters();
    linear1->reset_parameters();
    linear2->reset_parameters();
    norm1->reset_parameters();
    norm2->reset_parameters();
  }

  at::Tensor forward(at::Tensor const& src, at::Tensor const& src_mask = {},
                     at::Tensor const& src_key_padding_mask = {});

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())}, {2, torch::nn::AnyValue(at::Tensor())})

 public:
  TransformerEncoderLayerOptions options;
  MultiheadAttention self_attn = nullptr;
  Linear linear1 = nullptr;
  Dropout dropout = nullptr;
  Linear linear2 = nullptr;
  LayerNorm norm1 = nullptr;
  LayerNorm norm2 = nullptr;
  Dropout dropout1 = nullptr;
  Dropout dropout2 = nullptr;
};
WEFT_MODULE(TransformerEncoderLayer);

struct TransformerDecoderLayerImpl : torch::nn::Cloneable<TransformerDecoderLayerImpl> {
  TransformerDecoderLayerImpl(int64_t d_model, int64_t nhead)
      : TransformerDecoderLayerImpl(TransformerDecoderLayerOptions(d_model, nhead)) {}
  explicit TransformerDecoderLayerImpl(TransformerDecoderLayerOptions chosen) : options(std::move(chosen)) { reset(); }

  void reset() override;
  void reset_parameters();

  at::Tensor forward(at::Tensor tgt, at::Tensor const& memory, at::Tensor const& tgt_mask = {},
                     at::Tensor const& memory_mask = {}, at::Tensor const& tgt_key_padding_mask = {},
                     at::Tensor const& memory_key_padding_mask = {});

 protected:
  FORWARD_HAS_DEFAULT_ARGS({2, torch::nn::AnyValue(at::Tensor())}, {3, torch::nn::AnyValue(at::Tensor())},
                           {4, torch::nn::AnyValue(at::Tensor())}, {5, torch::nn::AnyValue(at::Tensor())})

 public:
  TransformerDecoderLayerOptions options;
  MultiheadAttention self_attn = nullptr;
  MultiheadAttention multihead_attn = nullptr;
  Linear linear1 = nullptr;
  Dropout dropout = nullptr;
  Linear linear2 = nullptr;
  LayerNorm norm1 = nullptr;
  LayerNorm norm2 = nullptr;
  LayerNorm norm3 = nullptr;
  Dropout dropout1 = nullptr;
  Dropout dropout2 = nullptr;
  Dropout dropout3 = nullptr;
};
WEFT_MODULE(TransformerDecoderLayer);

}  // namespace weft::nn

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/nn/transformer_layer.ipp>
#endif
