// nn/transformer_coder.hpp -- stacks of Transformer layers.
// In: a layer, how many, and perhaps a norm. Out: torch::nn's TransformerEncoder and Decoder, each layer a unit that is
// entered.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/options/transformercoder.h>

#include <weft/core/error.hpp>
#include <weft/nn/transformer_layer.hpp>
#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

// torch::nn's options name torch::nn's layers; these name weft's, and convert from those, weights included.
struct TransformerEncoderOptions {
  TransformerEncoderOptions(TransformerEncoderLayer encoder_layer, int64_t num_layers)
      : encoder_layer_(std::move(encoder_layer)), num_layers_(num_layers) {}
  TransformerEncoderOptions(TransformerEncoderLayerOptions const& layer, int64_t num_layers)
      : encoder_layer_(TransformerEncoderLayer(layer)), num_layers_(num_layers) {}
  /* implicit */ TransformerEncoderOptions(torch::nn::TransformerEncoderOptions const& options);

  TORCH_ARG(TransformerEncoderLayer, encoder_layer) = nullptr;
  TORCH_ARG(int64_t, num_layers);
  TORCH_ARG(torch::nn::AnyModule, norm);
};

struct TransformerDecoderOptions {
  TransformerDecoderOptions(TransformerDecoderLayer decoder_layer, int64_t num_layers)
      : decoder_layer_(std::move(decoder_layer)), num_layers_(num_layers) {}
  TransformerDecoderOptions(TransformerDecoderLayerOptions const& layer, int64_t num_layers)
      : decoder_layer_(TransformerDecoderLayer(layer)), num_layers_(num_layers) {}
  /* implicit */ TransformerDecoderOptions(torch::nn::TransformerDecoderOptions const& options);

  TORCH_ARG(TransformerDecoderLayer, decoder_layer) = nullptr;
  TORCH_ARG(int64_t, num_layers);
  TORCH_ARG(torch::nn::AnyModule, norm);
};

namespace detail {

// The part of a stack that doesn't depend on which: Layer is a holder, Derived has template_layer().
template <class Derived, class Layer>
class Stack : public torch::nn::Cloneable<Derived> {
 public:
  void reset() override {
    layers = this->register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < self().options.num_layers(); ++i) layers->push_back(self().template_layer()->clone());
    reset_norm();
  }
  void reset_parameters() {
    for (std::size_t i = 0; i < layers->size(); ++i) layer(i)->reset_parameters();
    if (!norm.is_empty()) this->unregister_module("norm");  // an AnyModule can only be replaced
    norm = torch::nn::AnyModule();
    reset_norm();
  }

  torch::nn::ModuleList layers = nullptr;
  torch::nn::AnyModule norm;

 protected:
  Layer layer(std::size_t i) const { return std::dynamic_pointer_cast<typename Layer::ContainedType>(layers->ptr(i)); }

  template <class Run>
  at::Tensor run_layers(at::Tensor x, Run const& run) {
    for (std::size_t i = 0; i < layers->size(); ++i) {
      auto layer_here = layer(i);
      if (!layer_here)
        fail<ConfigurationError>("weft: layers.", i, " is not a ",
                                 unit::shown_name(unit::implementation_name<typename Layer::Impl>()));
      x = run(layer_here, x);
    }
    return norm.is_empty() ? x : norm.forward<at::Tensor>(x);
  }

 private:
  Derived& self() { return static_cast<Derived&>(*this); }
  void reset_norm() {
    if (self().options.norm().is_empty()) return;
    norm = self().options.norm().clone();
    this->register_module("norm", norm.ptr());
  }
};

}  // namespace detail

struct TransformerEncoderImpl : detail::Stack<TransformerEncoderImpl, TransformerEncoderLayer> {
  TransformerEncoderImpl(TransformerEncoderLayer encoder_layer, int64_t num_layers)
      : TransformerEncoderImpl(TransformerEncoderOptions(std::move(encoder_layer), num_layers)) {}
  explicit TransformerEncoderImpl(TransformerEncoderOptions chosen) : options(std::move(chosen)) { reset(); }

  TransformerEncoderLayer const& template_layer() const { return options.encoder_layer(); }

  at::Tensor forward(at::Tensor const& src, at::Tensor const& src_mask = {},
                     at::Tensor const& src_key_padding_mask = {}) {
    return run_layers(src, [&](TransformerEncoderLayer& here, at::Tensor const& x) {
      return here(x, src_mask, src_key_padding_mask);
    });
  }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())}, {2, torch::nn::AnyValue(at::Tensor())})

 public:
  TransformerEncoderOptions options;
};
WEFT_MODULE(TransformerEncoder);

struct TransformerDecoderImpl : detail::Stack<TransformerDecoderImpl, TransformerDecoderLayer> {
  TransformerDecoderImpl(TransformerDecoderLayer decoder_layer, int64_t num_layers)
      : TransformerDecoderImpl(TransformerDecoderOptions(std::move(decoder_layer), num_layers)) {}
  explicit TransformerDecoderImpl(TransformerDecoderOptions chosen) : options(std::move(chosen)) { reset(); }

  TransformerDecoderLayer const& template_layer() const { return options.decoder_layer(); }

  at::Tensor forward(at::Tensor const& tgt, at::Tensor const& memory, at::Tensor const& tgt_mask = {},
                     at::Tensor const& memory_mask = {}, at::Tensor const& tgt_key_padding_mask = {},
                     at::Tensor const& memory_key_padding_mask = {});

 protected:
  FORWARD_HAS_DEFAULT_ARGS({2, torch::nn::AnyValue(at::Tensor())}, {3, torch::nn::AnyValue(at::Tensor())},
                           {4, torch::nn::AnyValue(at::Tensor())}, {5, torch::nn::AnyValue(at::Tensor())})

 public:
  TransformerDecoderOptions options;
};
WEFT_MODULE(TransformerDecoder);

}  // namespace weft::nn

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/nn/transformer_coder.ipp>
#endif
