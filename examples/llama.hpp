// llama.hpp -- the language model of the examples, tests and benchmarks.
// In: a shape. Out: a Llama-like decoder: RMSNorm, rotary positions, SwiGLU, no biases, nothing tied.
//
// Ordinary LibTorch code; WEFT_MODULE instead of TORCH_MODULE makes a module a unit that strategies can wrap.
// Cloneable, with what is registered in reset(), is what LibTorch asks of modules that are cloned: DataParallel does.
#pragma once

#include <cmath>
#include <cstdint>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/modulelist.h>

#include <weft/nn/layers.hpp>
#include <weft/unit/unit.hpp>

namespace llama {

struct Shape {
  int64_t vocab = 128, dim = 64, layers = 2, heads = 4, hidden = 128, seq = 16;
};

inline weft::nn::Linear linear(int64_t in, int64_t out) {
  return weft::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

/// cos and sin of t * 10000^(-2i/d) for i < d/2: [2, seq, d/2], computed in double.
inline at::Tensor rope_table(int64_t seq, int64_t head_dim) {
  auto const i = at::arange(head_dim / 2, at::kDouble);
  auto const t = at::arange(seq, at::kDouble);
  auto const angle = at::outer(
      t, at::pow(at::scalar_tensor(10000.0, at::kDouble), -2.0 * i / static_cast<double>(head_dim)));
  return at::stack({angle.cos(), angle.sin()}).to(at::kFloat);
}

/// Rotates the pairs (first half, second half) of the last dim of x: [batch, heads, seq, head_dim].
inline at::Tensor rotate(at::Tensor const& x, at::Tensor const& rope) {
  auto const halves = x.chunk(2, -1);
  auto const cos = rope[0].to(x.dtype()), sin = rope[1].to(x.dtype());
  return at::cat({halves[0] * cos - halves[1] * sin, halves[0] * sin + halves[1] * cos}, -1);
}

struct AttentionImpl : torch::nn::Cloneable<AttentionImpl> {
  AttentionImpl(int64_t width, int64_t heads) : dim(width), head_dim(width / heads) { reset(); }
  void reset() override {
    wq = register_module("wq", linear(dim, dim));
    wk = register_module("wk", linear(dim, dim));
    wv = register_module("wv", linear(dim, dim));
    wo = register_module("wo", linear(dim, dim));
  }
  /// x: [batch, seq, dim]; rope: [2, seq, head_dim / 2].
  at::Tensor forward(at::Tensor const& x, at::Tensor const& rope) {
    auto const batch = x.size(0), seq = x.size(1);
    auto const heads_of = [&](at::Tensor const& t) { return t.view({batch, seq, -1, head_dim}).transpose(1, 2); };
    auto const q = rotate(heads_of(wq(x)), rope), k = rotate(heads_of(wk(x)), rope), v = heads_of(wv(x));
    auto const scores = at::matmul(q, k.transpose(2, 3)) * (1.0 / std::sqrt(static_cast<double>(head_dim)));
    auto const mask = at::ones({seq, seq}, at::TensorOptions(at::kBool).device(x.device())).triu(1);
    auto const weights = at::softmax(scores.masked_fill(mask, -INFINITY), -1);
    return wo(at::matmul(weights, v).transpose(1, 2).contiguous().view({batch, seq, -1}));
  }
  int64_t dim, head_dim;
  weft::nn::Linear wq = nullptr, wk = nullptr, wv = nullptr, wo = nullptr;
};
WEFT_MODULE(Attention);

struct FeedForwardImpl : torch::nn::Cloneable<FeedForwardImpl> {
  FeedForwardImpl(int64_t width, int64_t inner) : dim(width), hidden(inner) { reset(); }
  void reset() override {
    w1 = register_module("w1", linear(dim, hidden));
    w2 = register_module("w2", linear(hidden, dim));
    w3 = register_module("w3", linear(dim, hidden));
  }
  at::Tensor forward(at::Tensor const& x) { return w2(at::silu(w1(x)) * w3(x)); }
  int64_t dim, hidden;
  weft::nn::Linear w1 = nullptr, w2 = nullptr, w3 = nullptr;
};
WEFT_MODULE(FeedForward);

struct TransformerBlockImpl : torch::nn::Cloneable<TransformerBlockImpl> {
  explicit TransformerBlockImpl(Shape const& sizes) : shape(sizes) { reset(); }
  void reset() override {
    attention_norm = register_module("attention_norm", weft::nn::RMSNorm(shape.dim));
    attention = register_module("attention", Attention(shape.dim, shape.heads));
    ffn_norm = register_module("ffn_norm", weft::nn::RMSNorm(shape.dim));
    feed_forward = register_module("feed_forward", FeedForward(shape.dim, shape.hidden));
  }
  at::Tensor forward(at::Tensor const& x, at::Tensor const& rope) {
    auto const h = x + attention(attention_norm(x), rope);
    return h + feed_forward(ffn_norm(h));
  }
  Shape shape;
  weft::nn::RMSNorm attention_norm = nullptr, ffn_norm = nullptr;
  Attention attention = nullptr;
  FeedForward feed_forward = nullptr;
};
WEFT_MODULE(TransformerBlock);

struct LanguageModelImpl : torch::nn::Cloneable<LanguageModelImpl> {
  explicit LanguageModelImpl(Shape const& sizes) : shape(sizes), rope(rope_table(shape.seq, shape.dim / shape.heads)) {
    reset();
  }
  void reset() override {
    tok_embeddings = register_module("tok_embeddings", weft::nn::Embedding(shape.vocab, shape.dim));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < shape.layers; ++i) layers->push_back(TransformerBlock(shape));
    norm = register_module("norm", weft::nn::RMSNorm(shape.dim));
    output = register_module("output", linear(shape.dim, shape.vocab));
  }

  /// tokens: int64 [batch, up to shape.seq]. Returns logits [batch, the same, vocab].
  at::Tensor forward(at::Tensor const& tokens) {
    auto x = tok_embeddings(tokens);
    auto const positions = tokens.size(1) == shape.seq ? rope : rope.narrow(1, 0, tokens.size(1));
    for (auto const& layer : *layers) x = layer->as<TransformerBlock>()->forward(x, positions);
    return output(norm(x));
  }

  /// Continues a prompt [1, n] by `count` tokens, drawn at the given temperature.
  at::Tensor generate(at::Tensor tokens, int64_t count, double temperature) {
    at::NoGradGuard const no_grad;
    for (int64_t i = 0; i < count; ++i) {
      auto const context = tokens.narrow(1, std::max<int64_t>(0, tokens.size(1) - shape.seq),
                                         std::min(tokens.size(1), shape.seq));
      auto const logits = forward(context).select(1, -1);
      tokens = at::cat({tokens, at::multinomial(at::softmax(logits / temperature, -1), 1)}, 1);
    }
    return tokens;
  }

  Shape shape;
  at::Tensor rope;  // not a buffer: the same on every rank, never saved
  weft::nn::Embedding tok_embeddings = nullptr;
  torch::nn::ModuleList layers =
      nullptr;  // alone: in a clone, holders of one's own beside a list would still be those of reset()
  weft::nn::RMSNorm norm = nullptr;
  weft::nn::Linear output = nullptr;
};
WEFT_MODULE(LanguageModel);

/// Mean cross entropy over all tokens of a micro-batch. logits: [batch, seq, vocab], targets: int64 [batch, seq].
inline at::Tensor loss_of(at::Tensor const& logits, at::Tensor const& targets) {
  return torch::nn::functional::cross_entropy(logits.to(at::kFloat).view({-1, logits.size(-1)}), targets.view(-1));
}

}  // namespace llama
