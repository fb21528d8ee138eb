#include "test.hpp"

#include <weft/nn/transformer.hpp>

#include <weft/unit/activity.hpp>

namespace {

using at::Tensor;
namespace theirs = torch::nn;
namespace ours = weft::nn;

void copy_by_name(torch::nn::Module const& from, torch::nn::Module& to) {
  at::NoGradGuard no_grad;
  auto const source = from.named_parameters();
  auto const target = to.named_parameters();
  REQUIRE(target.keys() == source.keys());  // names and order
  REQUIRE(to.named_modules("", false).keys() == from.named_modules("", false).keys());
  for (auto const& parameter : target) {
    auto tensor = parameter.value();
    tensor.copy_(source[parameter.key()]);
  }
}

// Same outputs and same gradients, bit by bit, of the parameters and of the inputs.
void check_equal(torch::nn::Module& torchs, torch::nn::Module& wefts, Tensor const& theirs_out,
                 Tensor const& ours_out) {
  CHECK(at::equal(theirs_out, ours_out));
  auto const weight = at::linspace(-1, 1, theirs_out.numel()).view_as(theirs_out);
  (theirs_out * weight).sum().backward();
  (ours_out * weight).sum().backward();
  auto const expected = torchs.named_parameters();
  for (auto const& parameter : wefts.named_parameters()) {
    INFO(parameter.key());
    auto const& gradient = expected[parameter.key()].grad();
    CHECK(gradient.defined() == parameter.value().grad().defined());
    if (gradient.defined()) CHECK(at::equal(gradient, parameter.value().grad()));
  }
}

Tensor values(std::vector<int64_t> const& shape, double seed) {
  int64_t count = 1;
  for (auto size : shape) count *= size;
  return (at::arange(count, at::kFloat) * seed).sin().view(shape);
}

constexpr int64_t S = 5, T = 4, N = 2, E = 8;
Tensor causal(int64_t size) { return theirs::TransformerImpl::generate_square_subsequent_mask(size); }
Tensor padding(int64_t length) {
  auto mask = at::zeros({N, length}, at::kBool);
  mask[1][length - 1] = true;
  return mask;
}

template <class Options>
std::vector<std::pair<std::string, Options>> with_activations(Options const& options) {
  auto relu = options, gelu = options, own = options;
  relu.activation(torch::kReLU);
  gelu.activation(torch::kGELU);
  own.activation(std::function<Tensor(Tensor const&)>([](Tensor const& x) { return at::tanh(x); }));
  return {{"relu", relu}, {"gelu", gelu}, {"callable", own}};
}

TEST_CASE("TransformerEncoderLayer is torch::nn's", "[nn]") {
  for (auto const& [name, options] :
       with_activations(theirs::TransformerEncoderLayerOptions(E, 2).dim_feedforward(16).dropout(0))) {
    INFO(name);
    theirs::TransformerEncoderLayer a(options);
    ours::TransformerEncoderLayer b(options);
    copy_by_name(*a, *b);
    auto const src = values({S, N, E}, 0.7);
    CHECK(at::equal(a(src), b(src)));
    check_equal(*a, *b, a(src, causal(S), padding(S)), b(src, causal(S), padding(S)));
  }
}

TEST_CASE("TransformerDecoderLayer is torch::nn's", "[nn]") {
  for (auto const& [name, options] :
       with_activations(theirs::TransformerDecoderLayerOptions(E, 2).dim_feedforward(16).dropout(0))) {
    INFO(name);
    theirs::TransformerDecoderLayer a(options);
    ours::TransformerDecoderLayer b(options);
    copy_by_name(*a, *b);
    auto const tgt = values({T, N, E}, 0.7), memory = values({S, N, E}, 0.3);
    CHECK(at::equal(a(tgt, memory), b(tgt, memory)));
    check_equal(*a, *b, a(tgt, memory, causal(T), at::zeros({T, S}), padding(T), padding(S)),
                b(tgt, memory, causal(T), at::zeros({T, S}), padding(T), padding(S)));
  }
}

TEST_CASE("stacks take torch::nn's options, weights included, and weft's", "[nn]") {
  auto const layer_options = theirs::TransformerEncoderLayerOptions(E, 2).dim_feedforward(16).dropout(0);
  auto const src = values({S, N, E}, 0.7);
  SECTION("encoder") {
    theirs::TransformerEncoderLayer layer(layer_options);
    auto const options = theirs::TransformerEncoderOptions(layer, 3).norm(
        theirs::AnyModule(theirs::LayerNorm(theirs::LayerNormOptions({E}))));
    theirs::TransformerEncoder a(options);
    ours::TransformerEncoder b(options);
    REQUIRE(a->named_parameters().keys() == b->named_parameters().keys());
    check_equal(*a, *b, a(src, causal(S), padding(S)), b(src, causal(S), padding(S)));

    ours::TransformerEncoder c(ours::TransformerEncoderOptions(ours::TransformerEncoderLayer(layer_options), 3)
                                   .norm(theirs::AnyModule(ours::LayerNorm(ours::LayerNormOptions({E})))));
    copy_by_name(*a, *c);
    CHECK(at::equal(a(src), c(src)));
    ours::TransformerEncoder d(ours::TransformerEncoderLayer(layer_options), 2);
    CHECK(d->layers->size() == 2);
    CHECK(d->norm.is_empty());
    CHECK(d(src).sizes() == src.sizes());
  }
  SECTION("decoder") {
    theirs::TransformerDecoderLayer layer(theirs::TransformerDecoderLayerOptions(E, 2).dim_feedforward(16).dropout(0));
    auto const options = theirs::TransformerDecoderOptions(layer, 2);
    theirs::TransformerDecoder a(options);
    ours::TransformerDecoder b(options);
    auto const memory = values({S, N, E}, 0.3), tgt = values({T, N, E}, 0.2);
    check_equal(*a, *b, a(tgt, memory, causal(T), Tensor(), padding(T), padding(S)),
                b(tgt, memory, causal(T), Tensor(), padding(T), padding(S)));
  }
  SECTION("in Sequential, with default arguments") {
    torch::nn::Sequential sequential(ours::TransformerEncoder(ours::TransformerEncoderLayer(layer_options), 1));
    CHECK(sequential->forward(src).sizes() == src.sizes());
  }
}

TEST_CASE("Transformer is torch::nn's", "[nn]") {
  for (auto const& [name, options] :
       with_activations(theirs::TransformerOptions(E, 2, 2, 3).dim_feedforward(16).dropout(0))) {
    INFO(name);
    theirs::Transformer a(options);
    ours::Transformer b(options);
    copy_by_name(*a, *b);
    auto const src = values({S, N, E}, 0.7).requires_grad_(), tgt = values({T, N, E}, 0.3);
    CHECK(at::equal(a(src, tgt), b(src, tgt)));
    check_equal(*a, *b, a(src, tgt, causal(S), causal(T), Tensor(), padding(S), padding(T), padding(S)),
                b(src, tgt, causal(S), causal(T), Tensor(), padding(S), padding(T), padding(S)));
  }
}

TEST_CASE("Transformer draws the same initial values as torch::nn's", "[nn]") {
  auto const options = theirs::TransformerOptions(E, 2, 2, 2).dim_feedforward(16);
  torch::manual_seed(3);
  theirs::Transformer a(options);
  torch::manual_seed(3);
  ours::Transformer b(options);
  auto const expected = a->named_parameters();
  for (auto const& parameter : b->named_parameters()) {
    INFO(parameter.key());
    CHECK(at::equal(expected[parameter.key()], parameter.value()));
  }
  SECTION("and the same dropout") {
    auto const src = values({S, N, E}, 0.7), tgt = values({T, N, E}, 0.3);
    torch::manual_seed(4);
    auto const expected_out = a(src, tgt);
    torch::manual_seed(4);
    CHECK(at::equal(b(src, tgt), expected_out));
  }
}

TEST_CASE("Transformer refuses what torch::nn's refuses", "[nn]") {
  ours::Transformer it(theirs::TransformerOptions(E, 2, 1, 1).dim_feedforward(16));
  CHECK_THROWS_WITH(it(at::ones({S, E}), at::ones({T, N, E})), Catch::Matchers::ContainsSubstring("3 dimensions"));
  CHECK_THROWS_WITH(it(at::ones({S, 3, E}), at::ones({T, N, E})),
                    Catch::Matchers::ContainsSubstring("equal batch size"));
  CHECK_THROWS_WITH(it(at::ones({S, N, 4}), at::ones({T, N, 4})), Catch::Matchers::ContainsSubstring("d_model"));
  CHECK(at::equal(ours::Transformer::Impl::generate_square_subsequent_mask(3), causal(3)));
}

TEST_CASE("custom encoder and decoder", "[nn]") {
  ours::TransformerEncoder encoder(
      ours::TransformerEncoderLayer(theirs::TransformerEncoderLayerOptions(E, 2).dim_feedforward(16)), 1);
  ours::Transformer it(
      theirs::TransformerOptions(E, 2, 1, 1).dim_feedforward(16).custom_encoder(theirs::AnyModule(encoder)));
  CHECK(it->encoder.ptr()->as<ours::TransformerEncoder>() != nullptr);
  CHECK(it->encoder.ptr() != encoder.ptr());  // a clone, as in torch::nn
  CHECK(it->decoder.ptr()->as<ours::TransformerDecoder>()->layers->size() == 1);
  CHECK(it(values({S, N, E}, 0.7), values({T, N, E}, 0.3)).sizes() == at::IntArrayRef({T, N, E}));
}

struct Entered : weft::unit::Hooks {
  explicit Entered(std::vector<std::string>& into) : paths(into) {}
  void pre_forward(weft::unit::Site const& site, weft::unit::Tensors const&) override { paths.push_back(site.path); }
  std::vector<std::string>& paths;
};

TEST_CASE("every unit of a Transformer is entered, also in a clone", "[nn]") {
  ours::Transformer original(theirs::TransformerOptions(E, 2, 2, 1).dim_feedforward(16));
  ours::Transformer clone(std::dynamic_pointer_cast<ours::Transformer::Impl>(original->clone()));
  for (auto it : {original, clone}) {
    auto const activity = std::make_shared<weft::unit::RootActivity>();
    weft::unit::adopt(*it, activity);
    std::vector<std::string> all, entered;
    auto const hook = std::make_shared<Entered>(entered);
    weft::unit::for_each_unit(*it, [&](std::string const& path, weft::unit::UnitBase& unit) {
      all.push_back(path);
      unit.unit_attach(hook);
    });
    CHECK(all.size() == 1 + (1 + 2 * 9 + 1) + (1 + 12 + 1));
    weft::unit::RootActivity::Scope const running(*activity);
    it(values({S, N, E}, 0.7), values({T, N, E}, 0.3));
    std::sort(all.begin(), all.end());
    std::sort(entered.begin(), entered.end());
    CHECK(all == entered);
  }
  CHECK(original->unit_hooks().size() == 1);
}

TEST_CASE("a clone of a Transformer is equal and apart", "[nn]") {
  ours::Transformer original(theirs::TransformerOptions(E, 2, 1, 1).dim_feedforward(16).dropout(0));
  ours::Transformer clone(std::dynamic_pointer_cast<ours::Transformer::Impl>(original->clone()));
  auto const src = values({S, N, E}, 0.7), tgt = values({T, N, E}, 0.3);
  auto const before = original(src, tgt).detach();
  CHECK(at::equal(clone(src, tgt), before));
  {
    at::NoGradGuard no_grad;
    for (auto& parameter : clone->parameters()) parameter.zero_();
  }
  CHECK(at::equal(original(src, tgt), before));
  CHECK(at::equal(clone(src, tgt), at::zeros_like(before)));
}

TEST_CASE("reset_parameters of a stack renews layers and norm", "[nn]") {
  ours::TransformerEncoder it(
      ours::TransformerEncoderOptions(theirs::TransformerEncoderLayerOptions(E, 2).dim_feedforward(16), 2)
          .norm(theirs::AnyModule(ours::LayerNorm(ours::LayerNormOptions({E})))));
  auto const before = it->named_parameters()["layers.0.linear1.weight"].detach().clone();
  it->reset_parameters();
  CHECK_FALSE(at::equal(before, it->named_parameters()["layers.0.linear1.weight"]));
  CHECK(it->named_parameters().contains("norm.weight"));
}

}  // namespace
