#include "test.hpp"

#include <weft/nn/nn.hpp>

namespace {

using at::Tensor;
namespace theirs = torch::nn;
namespace ours = weft::nn;

template <class T>
std::string printed(T const& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

template <class Result>
std::vector<Tensor> flat(Result const& result) {
  std::vector<Tensor> tensors;
  weft::for_each_leaf<Tensor>(result, [&](Tensor const& tensor) { tensors.push_back(tensor); });
  return tensors;
}

// Same seed, same arguments: same parameters, names, printing and results, through the holder and through a hooked
// unit.
template <class Theirs, class Ours, class Options, class... Inputs>
void check_layer(Options const& options, Inputs const&... inputs) {
  torch::manual_seed(1);
  Theirs a = [&] {
    if constexpr (std::is_same_v<Options, std::monostate>)
      return Theirs();
    else
      return Theirs(options);
  }();
  torch::manual_seed(1);
  Ours b = [&] {
    if constexpr (std::is_same_v<Options, std::monostate>)
      return Ours();
    else
      return Ours(options);
  }();
  INFO(printed(a));
  CHECK(printed(a) == printed(b));
  CHECK(a->named_parameters().keys() == b->named_parameters().keys());
  CHECK(a->named_buffers().keys() == b->named_buffers().keys());
  STATIC_CHECK(std::is_base_of_v<typename Theirs::ContainedType, typename Ours::ContainedType>);
  STATIC_CHECK(std::is_base_of_v<weft::unit::UnitBase, typename Ours::ContainedType>);

  struct Border : weft::unit::Hooks {
    Needs needs() const override { return {.inputs = false, .pre_backward = true, .post_backward = false}; }
    void pre_forward(weft::unit::Site const&, weft::unit::Tensors const&) override { ++entered; }
    int entered = 0;
  };
  for (bool const hooked : {false, true}) {
    auto const hook = std::make_shared<Border>();
    if (hooked) b->unit_attach(hook);
    a->zero_grad();
    b->zero_grad();
    torch::manual_seed(2);
    auto const expected = flat(a(inputs...));
    torch::manual_seed(2);
    auto const got = flat(b(inputs...));
    CHECK(hook->entered == (hooked ? 1 : 0));
    REQUIRE(expected.size() == got.size());
    Tensor expected_sum = at::zeros({}), got_sum = at::zeros({});
    for (std::size_t i = 0; i < got.size(); ++i) {
      REQUIRE(expected[i].defined() == got[i].defined());
      if (!got[i].defined()) continue;
      CHECK(at::equal(expected[i], got[i]));
      expected_sum = expected_sum + expected[i].sin().sum();
      got_sum = got_sum + got[i].sin().sum();
    }
    if (!expected_sum.requires_grad()) continue;
    expected_sum.backward();
    got_sum.backward();
    auto const parameters = a->named_parameters();
    for (auto const& parameter : b->named_parameters()) {
      auto const& gradient = parameters[parameter.key()].grad();
      CHECK(gradient.defined() == parameter.value().grad().defined());
      if (gradient.defined() && !gradient.is_sparse()) CHECK(at::equal(gradient, parameter.value().grad()));
    }
  }
}
constexpr std::monostate none{};

Tensor values(std::vector<int64_t> const& shape) {
  int64_t count = 1;
  for (auto size : shape) count *= size;
  return (at::arange(count, at::kFloat) * 0.37).sin().view(shape);
}

#define SAME(Name, ...) check_layer<theirs::Name, ours::Name>(__VA_ARGS__)

TEST_CASE("linear layers are torch::nn's", "[nn]") {
  auto const x = values({2, 4});
  SAME(Linear, theirs::LinearOptions(4, 3), x);
  SAME(Linear, theirs::LinearOptions(4, 3).bias(false), x);
  SAME(Bilinear, theirs::BilinearOptions(4, 4, 2), x, x);
  SAME(Identity, none, x);
  SAME(Flatten, theirs::FlattenOptions(), values({2, 3, 4}));
  SAME(Unflatten, theirs::UnflattenOptions(1, {2, 2}), x);
}

TEST_CASE("lookup tables are torch::nn's", "[nn]") {
  auto const index = at::tensor({1, 0, 3, 1}, at::kLong);
  SAME(Embedding, theirs::EmbeddingOptions(5, 3), index);
  SAME(Embedding, theirs::EmbeddingOptions(5, 3).padding_idx(1), index);
  SAME(EmbeddingBag, theirs::EmbeddingBagOptions(5, 3).mode(torch::kSum), index, at::tensor({0, 2}, at::kLong));

  auto const weight = values({5, 3});
  auto frozen = ours::Embedding::from_pretrained(weight);
  CHECK_FALSE(frozen->weight.requires_grad());
  CHECK(at::equal(frozen(index), weight.index_select(0, index)));
  CHECK(frozen->weight.is_same(frozen->named_parameters()["weight"]));
  CHECK(ours::Embedding::from_pretrained(weight, ours::EmbeddingFromPretrainedOptions().freeze(false))
            ->weight.requires_grad());
  CHECK_FALSE(ours::EmbeddingBag::from_pretrained(weight)->weight.requires_grad());
}

TEST_CASE("normalization is torch::nn's", "[nn]") {
  SAME(LayerNorm, theirs::LayerNormOptions({4}), values({2, 4}));
  SAME(GroupNorm, theirs::GroupNormOptions(2, 4), values({2, 4, 3}));
  SAME(LocalResponseNorm, theirs::LocalResponseNormOptions(2), values({2, 4, 3}));
  SAME(CrossMapLRN2d, theirs::CrossMapLRN2dOptions(2), values({2, 4, 3, 3}));
  SAME(BatchNorm1d, theirs::BatchNorm1dOptions(4), values({3, 4}));
  SAME(BatchNorm2d, theirs::BatchNorm2dOptions(4), values({3, 4, 2, 2}));
  SAME(BatchNorm3d, theirs::BatchNorm3dOptions(4), values({3, 4, 2, 2, 2}));
  SAME(InstanceNorm1d, theirs::InstanceNorm1dOptions(4).affine(true), values({3, 4, 5}));
  SAME(InstanceNorm2d, theirs::InstanceNorm2dOptions(4), values({3, 4, 2, 2}));
  SAME(InstanceNorm3d, theirs::InstanceNorm3dOptions(4), values({3, 4, 2, 2, 2}));
}

TEST_CASE("convolutions are torch::nn's", "[nn]") {
  SAME(Conv1d, theirs::Conv1dOptions(2, 3, 3), values({1, 2, 6}));
  SAME(Conv2d, theirs::Conv2dOptions(2, 4, 3).padding(1).groups(2), values({1, 2, 5, 5}));
  SAME(Conv3d, theirs::Conv3dOptions(2, 3, 2), values({1, 2, 3, 3, 3}));
  SAME(ConvTranspose1d, theirs::ConvTranspose1dOptions(2, 3, 3), values({1, 2, 6}));
  SAME(ConvTranspose2d, theirs::ConvTranspose2dOptions(2, 3, 3).stride(2), values({1, 2, 4, 4}));
  SAME(ConvTranspose3d, theirs::ConvTranspose3dOptions(2, 3, 2), values({1, 2, 3, 3, 3}));
  std::vector<int64_t> const size = {9, 9};
  SAME(ConvTranspose2d, theirs::ConvTranspose2dOptions(2, 3, 3).stride(2), values({1, 2, 4, 4}), at::IntArrayRef(size));
}

TEST_CASE("dropout and activations are torch::nn's", "[nn]") {
  auto const x = values({2, 4, 4, 4});
  SAME(Dropout, theirs::DropoutOptions(0.5), x);
  SAME(Dropout2d, theirs::Dropout2dOptions(0.5), x);
  SAME(Dropout3d, theirs::Dropout3dOptions(0.5), values({2, 4, 2, 2, 2}));
  SAME(AlphaDropout, theirs::AlphaDropoutOptions(0.5), x);
  SAME(FeatureAlphaDropout, theirs::FeatureAlphaDropoutOptions(0.5), x);
  SAME(ReLU, theirs::ReLUOptions(), x);
  SAME(ReLU6, theirs::ReLU6Options(), x);
  SAME(LeakyReLU, theirs::LeakyReLUOptions().negative_slope(0.3), x);
  SAME(PReLU, theirs::PReLUOptions(), x);
  SAME(RReLU, theirs::RReLUOptions(), x);
  SAME(ELU, theirs::ELUOptions(), x);
  SAME(SELU, theirs::SELUOptions(), x);
  SAME(CELU, theirs::CELUOptions(), x);
  SAME(GELU, theirs::GELUOptions().approximate("tanh"), x);
  SAME(GLU, theirs::GLUOptions(1), x);
  SAME(SiLU, none, x);
  SAME(Mish, none, x);
  SAME(Sigmoid, none, x);
  SAME(LogSigmoid, none, x);
  SAME(Tanh, none, x);
  SAME(Tanhshrink, none, x);
  SAME(Hardtanh, theirs::HardtanhOptions(), x);
  SAME(Hardshrink, theirs::HardshrinkOptions(0.2), x);
  SAME(Softshrink, theirs::SoftshrinkOptions(0.2), x);
  SAME(Softplus, theirs::SoftplusOptions(), x);
  SAME(Softsign, none, x);
  SAME(Softmax, theirs::SoftmaxOptions(1), x);
  SAME(Softmin, theirs::SoftminOptions(1), x);
  SAME(LogSoftmax, theirs::LogSoftmaxOptions(1), x);
  SAME(Softmax2d, none, x);
  SAME(Threshold, theirs::ThresholdOptions(0.1, 2), x);
}

TEST_CASE("pooling is torch::nn's", "[nn]") {
  auto const x1 = values({1, 2, 6}), x2 = values({1, 2, 6, 6}), x3 = values({1, 2, 4, 4, 4});
  SAME(AvgPool1d, theirs::AvgPool1dOptions(2), x1);
  SAME(AvgPool2d, theirs::AvgPool2dOptions(2), x2);
  SAME(AvgPool3d, theirs::AvgPool3dOptions(2), x3);
  SAME(MaxPool1d, theirs::MaxPool1dOptions(2), x1);
  SAME(MaxPool2d, theirs::MaxPool2dOptions(2), x2);
  SAME(MaxPool3d, theirs::MaxPool3dOptions(2), x3);
  SAME(AdaptiveAvgPool1d, theirs::AdaptiveAvgPool1dOptions(3), x1);
  SAME(AdaptiveAvgPool2d, theirs::AdaptiveAvgPool2dOptions({3, 2}), x2);
  SAME(AdaptiveAvgPool3d, theirs::AdaptiveAvgPool3dOptions({2, 2, 2}), x3);
  SAME(AdaptiveMaxPool1d, theirs::AdaptiveMaxPool1dOptions(3), x1);
  SAME(AdaptiveMaxPool2d, theirs::AdaptiveMaxPool2dOptions({3, 2}), x2);
  SAME(AdaptiveMaxPool3d, theirs::AdaptiveMaxPool3dOptions({2, 2, 2}), x3);
  SAME(LPPool1d, theirs::LPPool1dOptions(2, 2), x1);
  SAME(LPPool2d, theirs::LPPool2dOptions(2, 2), x2);
  SAME(FractionalMaxPool2d, theirs::FractionalMaxPool2dOptions(2).output_size(3), x2);
  SAME(FractionalMaxPool3d, theirs::FractionalMaxPool3dOptions(2).output_size(2), x3);
  auto [pooled, indices] = theirs::MaxPool2d(theirs::MaxPool2dOptions(2))->forward_with_indices(x2);
  SAME(MaxUnpool2d, theirs::MaxUnpool2dOptions(2), pooled, indices);
  auto [pooled1, indices1] = theirs::MaxPool1d(theirs::MaxPool1dOptions(2))->forward_with_indices(x1);
  SAME(MaxUnpool1d, theirs::MaxUnpool1dOptions(2), pooled1, indices1);
}

TEST_CASE("recurrent layers are torch::nn's", "[nn]") {
  auto const x = values({3, 2, 4}), step = values({2, 4}), h = values({2, 5});
  SAME(RNN, theirs::RNNOptions(4, 5).num_layers(2), x);
  SAME(LSTM, theirs::LSTMOptions(4, 5).bidirectional(true), x);
  SAME(LSTM, theirs::LSTMOptions(4, 5), x, std::make_tuple(values({1, 2, 5}), values({1, 2, 5})));
  SAME(GRU, theirs::GRUOptions(4, 5), x, values({1, 2, 5}));
  SAME(RNNCell, theirs::RNNCellOptions(4, 5), step);
  SAME(RNNCell, theirs::RNNCellOptions(4, 5), step, h);
  SAME(LSTMCell, theirs::LSTMCellOptions(4, 5), step, std::make_tuple(h, h));
  SAME(GRUCell, theirs::GRUCellOptions(4, 5), step, h);
}

TEST_CASE("attention is torch::nn's, and a leaf", "[nn]") {
  auto const q = values({3, 2, 4});
  SAME(MultiheadAttention, theirs::MultiheadAttentionOptions(4, 2), q, q, q);
  SAME(MultiheadAttention, theirs::MultiheadAttentionOptions(4, 2).dropout(0.5), q, q, q, at::Tensor(), false);
  ours::MultiheadAttention attention(4, 2);
  CHECK(dynamic_cast<weft::unit::UnitBase*>(attention->out_proj.get()) == nullptr);
}

TEST_CASE("padding, folding and resampling are torch::nn's", "[nn]") {
  auto const x1 = values({1, 2, 6}), x2 = values({1, 4, 4, 4}), x3 = values({1, 2, 4, 4, 4});
  SAME(ReflectionPad1d, theirs::ReflectionPad1dOptions(2), x1);
  SAME(ReflectionPad2d, theirs::ReflectionPad2dOptions(2), x2);
  SAME(ReplicationPad3d, theirs::ReplicationPad3dOptions(1), x3);
  SAME(ZeroPad2d, theirs::ZeroPad2dOptions({1, 0, 2, 1}), x2);
  SAME(ConstantPad1d, theirs::ConstantPad1dOptions(2, 1.5), x1);
  SAME(Unfold, theirs::UnfoldOptions({2, 2}), x2);
  SAME(Fold, theirs::FoldOptions({3, 3}, {2, 2}), values({1, 12, 4}));
  SAME(PixelShuffle, theirs::PixelShuffleOptions(2), x2);
  SAME(PixelUnshuffle, theirs::PixelUnshuffleOptions(2), x2);
  SAME(Upsample, theirs::UpsampleOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest), x2);
}

TEST_CASE("recurrent layers clone and move like torch::nn's", "[nn]") {
  ours::LSTM lstm(4, 5);
  ours::LSTM copy(std::dynamic_pointer_cast<ours::LSTM::Impl>(lstm->clone()));
  REQUIRE(copy);
  auto const x = values({3, 2, 4});
  CHECK(at::equal(std::get<0>(lstm(x)), std::get<0>(copy(x))));
  {
    at::NoGradGuard no_grad;
    for (auto& parameter : copy->parameters()) parameter.zero_();
  }
  CHECK_FALSE(at::equal(std::get<0>(lstm(x)), std::get<0>(copy(x))));
  lstm->to(at::kDouble);
  CHECK(std::get<0>(lstm(x.to(at::kDouble))).scalar_type() == at::kDouble);
}

TEST_CASE("RMSNorm", "[nn]") {
  auto const x = values({2, 3, 4});
  ours::RMSNorm norm(4);
  CHECK(at::equal(norm(x), x * at::rsqrt(x.pow(2).mean(-1, true) + 1e-5) * at::ones({4})));
  {
    at::NoGradGuard no_grad;
    norm->weight.copy_(values({4}));
  }
  CHECK(at::equal(norm(x), x * at::rsqrt(x.pow(2).mean(-1, true) + 1e-5) * norm->weight));
  CHECK(at::allclose(norm(x), at::rms_norm(x, {4}, norm->weight, 1e-5)));
  CHECK(printed(norm) == "weft::nn::RMSNorm(4, eps=1e-05, elementwise_affine=true)");

  ours::RMSNorm plain(ours::RMSNormOptions(4).eps(0.1).elementwise_affine(false));
  CHECK(plain->parameters().empty());
  CHECK(at::equal(plain(x), x * at::rsqrt(x.pow(2).mean(-1, true) + 0.1)));
  auto const copy = norm->clone();
  CHECK(at::equal(copy->as<ours::RMSNorm>()->forward(x), norm(x)));
  CHECK(plain->clone()->parameters().empty());
  norm->reset_parameters();
  CHECK(at::equal(norm->weight, at::ones({4})));
}

}  // namespace
