// nn/embedding.hpp -- lookup tables.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <memory>

#include <torch/nn/modules/embedding.h>

#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

using torch::nn::EmbeddingBagFromPretrainedOptions;
using torch::nn::EmbeddingBagOptions;
using torch::nn::EmbeddingFromPretrainedOptions;
using torch::nn::EmbeddingOptions;

namespace detail {

// Table is LibTorch's holder, which knows how a lookup table is made from its weights.
template <class Table, class Options>
class PretrainedHolder : public unit::Holder<typename Table::ContainedType> {
 public:
  using unit::Holder<typename Table::ContainedType>::Holder;

  static PretrainedHolder from_pretrained(at::Tensor const& embeddings, Options const& options = {}) {
    return {std::make_shared<typename PretrainedHolder::Impl>(*Table::from_pretrained(embeddings, options))};
  }
};

}  // namespace detail

using Embedding = detail::PretrainedHolder<torch::nn::Embedding, EmbeddingFromPretrainedOptions>;
using EmbeddingBag = detail::PretrainedHolder<torch::nn::EmbeddingBag, EmbeddingBagFromPretrainedOptions>;

}  // namespace weft::nn
