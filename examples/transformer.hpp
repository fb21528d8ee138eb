// transformer.hpp -- an encoder-decoder Transformer between an embedding and an output layer, and its shape by
// arithmetic.
// In: sizes. Out: the model; and, known to the compiler, what weft::shape_of would say of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/nn/module.h>

#include <weft/estimates/estimate.hpp>
#include <weft/nn/embedding.hpp>
#include <weft/nn/linear.hpp>
#include <weft/nn/transformer.hpp>

namespace transformer {

struct Sizes {
  std::int64_t layers = 32;  // of the encoder, and as many of the decoder
  std::int64_t width = 1024;
  std::int64_t feed_forward = 4096;
  std::int64_t heads = 64;
  std::int64_t vocabulary = 33278;
};

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(Sizes const& sizes) {
    embedding = register_module("embedding", torch::nn::Embedding(sizes.vocabulary, sizes.width));
    transformer = register_module(
        "transformer",
        weft::nn::Transformer(weft::nn::TransformerOptions(sizes.width, sizes.heads, sizes.layers, sizes.layers)
                                  .dim_feedforward(sizes.feed_forward)
                                  .dropout(0.0)));
    decoder = register_module("decoder", torch::nn::Linear(sizes.width, sizes.vocabulary));
  }
  at::Tensor forward(at::Tensor const& source, at::Tensor const& target) {
    return decoder(transformer(embedding(source), embedding(target)));
  }

  torch::nn::Embedding embedding = nullptr;
  weft::nn::Transformer transformer = nullptr;
  torch::nn::Linear decoder = nullptr;
};
TORCH_MODULE(Model);

/// Each layer is a unit; the root keeps the embedding, the two last norms and the output layer.
constexpr weft::ModelShape shape(Sizes const& sizes, std::size_t optimizer_states) {
  auto const w = sizes.width, f = sizes.feed_forward, v = sizes.vocabulary;
  using Parameters = std::vector<weft::ParameterShape>;
  auto const attention = [&](Parameters& unit) { unit.insert(unit.end(), {{3 * w * w}, {3 * w}, {w * w}, {w}}); };
  auto const layer = [&](int num_attentions) {
    Parameters unit;
    for (int i = 0; i < num_attentions; ++i) attention(unit);
    unit.insert(unit.end(), {{w * f}, {f}, {f * w}, {w}});
    for (int i = 0; i < num_attentions + 1; ++i) unit.insert(unit.end(), {{w}, {w}});  // norms
    return weft::UnitShape{.parent = 0, .parameters = std::move(unit)};
  };
  weft::ModelShape model{.units = {{.parameters = {{v * w}, {w}, {w}, {w}, {w}, {v * w}, {v}}, .before_inner = 1}},
                         .optimizer_states = optimizer_states};
  for (std::int64_t i = 0; i < sizes.layers; ++i) model.units.push_back(layer(1));
  for (std::int64_t i = 0; i < sizes.layers; ++i) model.units.push_back(layer(2));
  return model;
}

}  // namespace transformer
