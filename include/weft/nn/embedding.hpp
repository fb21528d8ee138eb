// nn/embedding.hpp -- lookup tables.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <memory>

#include <torch/nn/modules/embedding.h>

#include <weft/unit/unit.hpp>

namespace weft::nn {

using torch::nn::EmbeddingBagFromPretrainedOptions;
using torch::nn::EmbeddingBagOptions;
using torch::nn::EmbeddingFromPretrainedOptions;
using torch::nn::EmbeddingOptions;

class Embedding : public unit::Holder<torch::nn::EmbeddingImpl> {
 public:
  using Holder::Holder;
  using Impl = Unit<torch::nn::EmbeddingImpl>;

  static Embedding from_pretrained(at::Tensor const& embeddings, EmbeddingFromPretrainedOptions const& options = {}) {
    return {std::make_shared<Impl>(*torch::nn::Embedding::from_pretrained(embeddings, options))};
  }
};

class EmbeddingBag : public unit::Holder<torch::nn::EmbeddingBagImpl> {
 public:
  using Holder::Holder;
  using Impl = Unit<torch::nn::EmbeddingBagImpl>;

  static EmbeddingBag from_pretrained(at::Tensor const& embeddings, EmbeddingBagFromPretrainedOptions const& options = {}) {
    return {std::make_shared<Impl>(*torch::nn::EmbeddingBag::from_pretrained(embeddings, options))};
  }
};

}  // namespace weft::nn
