// nn/transformer_layer.ipp -- definitions of nn/transformer_layer.hpp.
#pragma once

#include <weft/nn/transformer_layer.hpp>

#include <functional>
#include <tuple>
#include <variant>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <torch/enum.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::nn::detail {

WEFT_INLINE at::Tensor activate(torch::nn::activation_t const& activation, at::Tensor const& x) {
  if (std::holds_alternative<torch::enumtype::kGELU>(activation)) return at::gelu(x);
  if (std::holds_alternative<torch::enumtype::kReLU>(activation)) return at::relu(x);
  return std::get<std::function<at::Tensor(at::Tensor const&)>>(activation)(x);
}

WEFT_INLINE void copy_parameters(torch::nn::Module const& from, torch::nn::Module& to) {
  at::NoGradGuard no_grad;
  auto const source = from.named_parameters();
  for (auto const& parameter : to.named_parameters()) {
    auto const& value = source[parameter.key()];
    auto tensor = parameter.value();  // a handle
    tensor.set_data(value.clone());
    tensor.set_requires_grad(value.requires_grad());
  }
  to.train(from.is_training());
}

}  // namespace weft::nn::detail

namespace weft::inline v0::nn {

WEFT_INLINE void TransformerEncoderLayerImpl::reset() {
  self_attn = register_module("self_attn", detail::attention(options));
  linear1 = register_module("linear1", Linear(options.d_model(), options.dim_feedforward()));
  dropout = register_module("dropout", Dropout(options.dropout()));
  linear2 = register_module("linear2", Linear(options.dim_feedforward(), options.d_model()));
  norm1 = register_module("norm1", LayerNorm(LayerNormOptions({options.d_model()})));
  norm2 = register_module("norm2", LayerNorm(LayerNormOptions({options.d_model()})));
  dropout1 = register_module("dropout1", Dropout(options.dropout()));
  dropout2 = register_module("dropout2", Dropout(options.dropout()));
}

WEFT_INLINE at::Tensor TransformerEncoderLayerImpl::forward(at::Tensor const& src, at::Tensor const& src_mask,
                                                            at::Tensor const& src_key_padding_mask) {
  auto const attended = std::get<0>(self_attn(src, src, src, src_key_padding_mask, /*need_weights=*/false, src_mask));
  auto const between = norm1(src + dropout1(attended));
  auto const fed = linear2(dropout(detail::activate(options.activation(), linear1(between))));
  return norm2(between + dropout2(fed));
}

WEFT_INLINE void TransformerDecoderLayerImpl::reset() {
  self_attn = register_module("self_attn", detail::attention(options));
  multihead_attn = register_module("multihead_attn", detail::attention(options));
  linear1 = register_module("linear1", Linear(options.d_model(), options.dim_feedforward()));
  dropout = register_module("dropout", Dropout(options.dropout()));
  linear2 = register_module("linear2", Linear(options.dim_feedforward(), options.d_model()));
  norm1 = register_module("norm1", LayerNorm(LayerNormOptions({options.d_model()})));
  norm2 = register_module("norm2", LayerNorm(LayerNormOptions({options.d_model()})));
  norm3 = register_module("norm3", LayerNorm(LayerNormOptions({options.d_model()})));
  dropout1 = register_module("dropout1", Dropout(options.dropout()));
  dropout2 = register_module("dropout2", Dropout(options.dropout()));
  dropout3 = register_module("dropout3", Dropout(options.dropout()));
}

WEFT_INLINE void TransformerDecoderLayerImpl::reset_parameters() {
  self_attn->_reset_parameters();
  multihead_attn->_reset_parameters();
  linear1->reset_parameters();
  linear2->reset_parameters();
  norm1->reset_parameters();
  norm2->reset_parameters();
  norm3->reset_parameters();
}

WEFT_INLINE at::Tensor TransformerDecoderLayerImpl::forward(at::Tensor tgt, at::Tensor const& memory,
                                                            at::Tensor const& tgt_mask, at::Tensor const& memory_mask,
                                                            at::Tensor const& tgt_key_padding_mask,
                                                            at::Tensor const& memory_key_padding_mask) {
  auto const self_attended =
      std::get<0>(self_attn(tgt, tgt, tgt, tgt_key_padding_mask, /*need_weights=*/false, tgt_mask));
  tgt = norm1(tgt + dropout1(self_attended));
  auto const attended =
      std::get<0>(multihead_attn(tgt, memory, memory, memory_key_padding_mask, /*need_weights=*/false, memory_mask));
  tgt = norm2(tgt + dropout2(attended));
  auto const fed = linear2(dropout(detail::activate(options.activation(), linear1(tgt))));
  return norm3(tgt + dropout3(fed));
}

}  // namespace weft::nn
