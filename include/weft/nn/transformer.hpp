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

  void reset() override;
  void reset_parameters() {
    for (auto& parameter : parameters())
      if (parameter.dim() > 1) torch::nn::init::xavier_uniform_(parameter);
  }

  at::Tensor forward(at::Tensor const& src, at::Tensor const& tgt, at::Tensor const& src_mask = {},
                     at::Tensor const& tgt_mask = {}, at::Tensor const& memory_mask = {},
                     at::Tensor const& src_key_padding_mask = {}, at::Tensor const& tgt_key_padding_mask = {},
                     at::Tensor const& memory_key_padding_mask = {});

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

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/nn/transformer.ipp>
#endif
