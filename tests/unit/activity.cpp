#include "test.hpp"

#include <weft/model/model.hpp>
#include <weft/unit/activity.hpp>

#include "units.hpp"

#include <weft/nn/attention.hpp>
#include <weft/nn/normalization.hpp>
#include <weft/nn/transformer.hpp>

using weft::test::Count;
using weft::test::Events;
using weft::unit::RootActivity;

namespace activity_test {

struct BlockImpl : torch::nn::Module {
  BlockImpl() : w1(register_module("w1", weft::nn::Linear(2, 2))), w2(register_module("w2", weft::nn::Linear(2, 2))) {}
  at::Tensor forward(at::Tensor const& x) { return w2(w1(x)); }
  weft::nn::Linear w1, w2;
};
WEFT_MODULE(Block);

struct ModelImpl : torch::nn::Module {
  ModelImpl() : layers(register_module("layers", torch::nn::Sequential(Block(), Block()))) {}
  at::Tensor forward(at::Tensor const& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};

}  // namespace activity_test

namespace {
using namespace activity_test;

TEST_CASE("units learn their path from the root", "[unit]") {
  ModelImpl model;  // no shared_ptr owns it
  auto const activity = std::make_shared<RootActivity>();
  weft::unit::adopt(model, activity);
  Events paths;
  weft::unit::for_each_unit(model, [&](std::string const& path, weft::unit::UnitBase& unit) {
    CHECK(unit.unit_path() == path);
    paths.push_back(path);
  });
  CHECK(paths == Events{"layers.0", "layers.0.w1", "layers.0.w2", "layers.1", "layers.1.w1", "layers.1.w2"});

  Block root;
  weft::unit::adopt(*root, activity);
  CHECK(root->unit_path().empty());
  CHECK(root->w2->unit_path() == "w2");
}

TEST_CASE("a unit runs only while its root does", "[unit]") {
  ModelImpl model;
  auto const x = at::ones({1, 2});
  auto const activity = std::make_shared<RootActivity>();
  weft::unit::adopt(model, activity);
  auto const block = model.layers->ptr<Block::Impl>(1);
  Count entered(block);
  CHECK_THROWS_AS(block->forward(x), weft::ConfigurationError);
  CHECK_THROWS_WITH(block->forward(x), Catch::Matchers::ContainsSubstring("unit layers.1 (activity_test::Block)") &&
                                           Catch::Matchers::ContainsSubstring("model.call<&M::method>(...)"));
  CHECK_THROWS_AS(model.forward(x), weft::ConfigurationError);
  CHECK(entered() == 0);
  {
    RootActivity::Scope const running(*activity);
    RootActivity::Scope const nested(*activity);
    CHECK(activity->depth() == 2);
    model.forward(x);
  }
  CHECK_FALSE(activity->is_active());
  CHECK(entered() == 1);
  CHECK(entered.events == Events{"enter layers.1", "leave layers.1"});

  SECTION("a unit without hooks too") { CHECK_THROWS_AS(block->w1(x), weft::ConfigurationError); }
  SECTION("release undoes it, and leaves hooks") {
    weft::unit::release(model);
    model.forward(x);
    CHECK(entered() == 2);
  }
  SECTION("an exception leaves the root inactive") {
    try {
      RootActivity::Scope const running(*activity);
      throw 1;
    } catch (int) {
    }
    CHECK_FALSE(activity->is_active());
  }
}

TEST_CASE("a unit that two roots share runs in either", "[unit]") {
  Block shared;
  auto const x = at::ones({1, 2});
  auto const one = std::make_shared<RootActivity>(), two = std::make_shared<RootActivity>();
  weft::unit::adopt(*shared, one);
  weft::unit::adopt(*shared, two);
  weft::unit::adopt(*shared, two);
  {
    RootActivity::Scope const running(*two);
    CHECK_NOTHROW(shared(x));
  }
  weft::unit::release(*shared, two);
  RootActivity::Scope const running(*two);
  CHECK_THROWS_AS(shared(x), weft::ConfigurationError);
}

// A holder's module as LibTorch's composites hold it.
template <class Plain, class Holder>
Plain as_plain(Holder const& unit) {
  return Plain(std::static_pointer_cast<typename Plain::ContainedType>(unit.ptr()));
}

TEST_CASE("units that LibTorch's composites call past are refused by name", "[unit]") {
  using Catch::Matchers::ContainsSubstring;
  SECTION("in TransformerEncoder's layers") {
    weft::nn::Linear linear(4, 2048);
    torch::nn::TransformerEncoder encoder(torch::nn::TransformerEncoderLayer(4, 2), 2);
    auto const layer = encoder->layers->ptr<torch::nn::TransformerEncoderLayerImpl>(1);
    layer->linear1 = as_plain<torch::nn::Linear>(linear);
    layer->replace_module("linear1", std::static_pointer_cast<torch::nn::Module>(linear.ptr()));
    torch::nn::Sequential model(encoder);
    CHECK_THROWS_AS(weft::unit::check_reachable(*model), weft::ConfigurationError);
    CHECK_THROWS_WITH(weft::unit::check_reachable(*model), ContainsSubstring("0.layers.1.linear1") &&
                                                               ContainsSubstring("weft::nn::TransformerEncoderLayer"));

    Count entered(linear);  // and indeed:
    encoder->forward(at::ones({1, 1, 4}));
    CHECK(entered() == 0);
  }
  SECTION("a whole layer") {
    weft::unit::Holder<torch::nn::TransformerDecoderLayerImpl> layer(4, 2);
    torch::nn::TransformerDecoder decoder(torch::nn::TransformerDecoderLayer(4, 2), 1);
    decoder->layers->replace_module("0", std::static_pointer_cast<torch::nn::Module>(layer.ptr()));
    CHECK_THROWS_WITH(weft::unit::check_reachable(*decoder),
                      ContainsSubstring("layers.0") && ContainsSubstring("weft::nn::TransformerDecoder"));
  }
  SECTION("as MultiheadAttention's out_proj") {
    weft::nn::Linear linear(4, 4);
    weft::nn::MultiheadAttention attention(4, 2);
    CHECK_NOTHROW(weft::unit::check_reachable(*attention));
    attention->out_proj = as_plain<torch::nn::Linear>(linear);
    attention->replace_module("out_proj", std::static_pointer_cast<torch::nn::Module>(linear.ptr()));
    CHECK_THROWS_WITH(weft::unit::check_reachable(*attention),
                      ContainsSubstring("out_proj") && ContainsSubstring("leaf"));
  }
  SECTION("but not what they hold as AnyModule") {
    weft::nn::LayerNorm norm(weft::nn::LayerNormOptions({4}));
    torch::nn::TransformerEncoder encoder(
        torch::nn::TransformerEncoderOptions(torch::nn::TransformerEncoderLayer(4, 2), 1)
            .norm(torch::nn::AnyModule(norm)));
    CHECK_NOTHROW(weft::unit::check_reachable(*encoder));
    weft::nn::LayerNorm inside(encoder->norm.ptr<weft::nn::LayerNorm::Impl>());
    Count entered(inside);
    encoder->forward(at::ones({1, 1, 4}));
    CHECK(entered() == 1);
  }
  SECTION("weft's own are fine") {
    weft::nn::Transformer transformer(weft::nn::TransformerOptions(4, 2, 1, 1).dim_feedforward(8));
    CHECK_NOTHROW(weft::unit::check_reachable(*transformer));
  }
}

}  // namespace

TEST_CASE("a call whose engine fails behind forward is abandoned, whether it returns something or not", "[unit]") {
  struct Failing final : weft::model::Engine {
    void post_forward(std::vector<at::Tensor*> const&) override { throw std::runtime_error("lost a rank"); }
    void abandon_forward() noexcept override { ++abandoned; }
    int abandoned = 0;
  };
  auto const engine = std::make_shared<Failing>();
  torch::nn::Linear const linear(2, 2);
  auto const state = std::make_shared<weft::model::ModelState>();
  state->module = linear.ptr();
  state->session = std::make_shared<weft::comm::Session>();
  state->engine = engine;
  weft::Model<torch::nn::Linear> model(linear, state);
  CHECK_THROWS_WITH(model(at::ones({2})), "lost a rank");
  CHECK(engine->abandoned == 1);
  CHECK_THROWS_WITH(model.enter([](torch::nn::LinearImpl& module) { module.forward(at::ones({2})); }), "lost a rank");
  CHECK(engine->abandoned == 2);
}
