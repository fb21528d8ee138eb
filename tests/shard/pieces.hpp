// pieces.hpp -- models whose numbers can be worked out in the head.
// In: sizes. Out: units of one weight each, which scale what comes in.
#pragma once

#include "models.hpp"

namespace test {

/// x * mean(w): the gradient of each element of w is sum(gradient * x) / numel.
struct PieceImpl : torch::nn::Module {
  explicit PieceImpl(int64_t numel, double start = 1.0) { w = register_parameter("w", torch::full({numel}, start)); }
  at::Tensor forward(at::Tensor const& x) { return x * w.mean(); }
  at::Tensor w;
};
WEFT_MODULE(Piece);
using Pieces = weft::WrapPolicy<Piece>;

/// root 3 { a 8, b 15, c 24 }
struct RowImpl : torch::nn::Module {
  RowImpl() {
    w = register_parameter("w", torch::ones({3}));
    a = register_module("a", Piece(8));
    b = register_module("b", Piece(15));
    c = register_module("c", Piece(24));
  }
  at::Tensor forward(at::Tensor const& x) { return c(b(a(x * w.mean()))); }
  at::Tensor w;
  Piece a = nullptr, b = nullptr, c = nullptr;
};
TORCH_MODULE(Row);

struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    w = register_parameter("w", torch::ones({10}));
    frozen = register_parameter("frozen", torch::ones({3}), /*requires_grad=*/false);
    inner = register_module("inner", Piece(17));
  }
  at::Tensor forward(at::Tensor const& x) { return inner(x * frozen.mean()) * w.mean(); }
  at::Tensor w, frozen;
  Piece inner = nullptr;
};
WEFT_MODULE(Outer);

/// root 5 { outer 10 + 3 frozen { inner 17 }, last 24 frozen }
struct NestedRowImpl : torch::nn::Module {
  NestedRowImpl() {
    w = register_parameter("w", torch::ones({5}));
    outer = register_module("outer", Outer());
    last = register_module("last", Piece(24));
    last->w.requires_grad_(false);
  }
  at::Tensor forward(at::Tensor const& x) { return last(outer(x * w.mean())); }
  at::Tensor w;
  Outer outer = nullptr;
  Piece last = nullptr;
};
TORCH_MODULE(NestedRow);

/// The sum of each whole gradient, NaN where there is none. Collective.
template <class Model>
std::vector<double> gradient_sums(Model const& model) {
  std::vector<double> sums;
  for (auto const& gradient : unsharded_gradients(model))
    sums.push_back(gradient.defined() ? gradient.sum().template item<double>() : NAN);
  return sums;
}
/// Whether all sums are one number.
inline bool all_are(std::vector<double> const& sums, double number) {
  return std::all_of(sums.begin(), sums.end(),
                     [&](double sum) { return std::abs(sum - number) < 1e-5 * std::max(1.0, std::abs(number)); });
}
inline std::string text_of(std::vector<double> const& sums) {
  std::string text;
  for (auto const sum : sums) text += (text.empty() ? "" : ", ") + std::to_string(sum);
  return "{" + text + "}";
}

/// f(std::type_identity<Strategy>()) for each.
template <class... Strategies, class Function>
void for_each_strategy(Function const& f) {
  (f(std::type_identity<Strategies>()), ...);
}

}  // namespace test
