#include "test.hpp"

#include <weft/model/parameter_table.hpp>
#include <weft/nn/activation.hpp>
#include <weft/nn/embedding.hpp>

#include "unit/units.hpp"

using weft::model::ParameterTable;

namespace table_test {

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : inner(register_module("inner", torch::nn::Linear(torch::nn::LinearOptions(3, 2).bias(false)))),
        w(register_module("w", weft::nn::Linear(2, 3))) {
    gain = register_parameter("gain", at::scalar_tensor(2.0));
  }
  at::Tensor forward(at::Tensor const& x) { return w(inner(x)) * gain; }
  torch::nn::Linear inner;
  weft::nn::Linear w;
  at::Tensor gain;
};
WEFT_MODULE(Block);

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(5, 3));
    block = register_module("block", Block());
    again = register_module("again", block);  // a module in two places
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(3, 5).bias(false)));
    tied = register_parameter("tied", embedding->weight);
    frozen = register_parameter("frozen", at::zeros({0, 4}, at::kHalf), /*requires_grad=*/false);
    absent = register_parameter("absent", at::Tensor(), /*requires_grad=*/false);
  }
  torch::nn::Embedding embedding{nullptr};
  Block block{nullptr}, again{nullptr};
  torch::nn::Linear head{nullptr};
  at::Tensor tied, frozen, absent;
};

}  // namespace table_test

namespace {
using namespace table_test;

TEST_CASE("one row per parameter, in registration order", "[unit]") {
  ModelImpl model;
  auto const table = ParameterTable::of(model);
  std::vector<std::string> names;
  for (auto const& row : table.rows()) names.push_back(row.name);
  CHECK(names == std::vector<std::string>{"tied", "frozen", "block.gain", "block.inner.weight", "block.w.weight",
                                          "block.w.bias", "head.weight"});

  // The same order as LibTorch's, and its names.
  auto const theirs = model.named_parameters();
  std::size_t next = 0;
  std::vector<std::string> theirs_once;
  std::vector<at::Tensor> seen;
  for (auto const& parameter : theirs) {
    if (std::any_of(seen.begin(), seen.end(), [&](auto const& s) { return s.is_same(parameter.value()); })) continue;
    seen.push_back(parameter.value());
    REQUIRE(next < table.size());
    CHECK(table.rows()[next++].name == parameter.key());
  }
  CHECK(next == table.size());
}

TEST_CASE("tied, frozen, 0-dim and empty parameters", "[unit]") {
  ModelImpl model;
  auto const table = ParameterTable::of(model);
  auto const& tied = *table.find("tied");
  CHECK(tied.aliases == std::vector<std::string>{"embedding.weight"});
  CHECK(table.find("embedding.weight") == &tied);
  CHECK(table.find("again.gain") == table.find("block.gain"));
  CHECK(table.find("block.gain")->aliases == std::vector<std::string>{"again.gain"});
  CHECK(table.find("block.gain")->global_shape.empty());
  CHECK(table.find("block.gain")->global_numel() == 1);
  CHECK(table.find("frozen")->global_numel() == 0);
  CHECK(table.find("frozen")->dtype == at::kHalf);
  CHECK_FALSE(table.find("frozen")->trainable);
  CHECK(table.find("block.gain")->trainable);
  CHECK(table.find("absent") == nullptr);
  CHECK(table.find("block.inner.bias") == nullptr);
}

TEST_CASE("the owner is the innermost unit", "[unit]") {
  ModelImpl model;
  auto const table = ParameterTable::of(model);
  CHECK(table.find("tied")->owner.empty());
  CHECK(table.find("block.gain")->owner == "block");
  CHECK(table.find("block.inner.weight")->owner == "block");  // a plain Linear is no unit
  CHECK(table.find("block.w.bias")->owner == "block.w");
}

TEST_CASE("parameters are found by identity, wherever their memory is", "[unit]") {
  ModelImpl model;
  auto const table = ParameterTable::of(model);
  auto const weight = model.block->w->weight;
  auto const index = table.index_of(weight);
  REQUIRE(index);
  CHECK(table.rows()[*index].name == "block.w.weight");
  auto handle = weight;
  handle.set_data(at::zeros({6}));
  CHECK(table.index_of(weight) == index);
  CHECK(table.rows()[*index].global_shape == std::vector<int64_t>{3, 2});
  CHECK(table.rows()[*index].tensor.numel() == 6);
  CHECK_FALSE(table.index_of(weight.detach()));  // the same memory, another tensor
  CHECK_FALSE(table.index_of(at::Tensor()));
}

TEST_CASE("descriptions are equal for equal models only", "[unit]") {
  ModelImpl a, b;
  CHECK(ParameterTable::of(a).describe() == ParameterTable::of(b).describe());
  auto const table = ParameterTable::of(a);
  CHECK(ParameterTable::describe(*table.find("tied")) == "tied [5, 3] Float = embedding.weight");
  CHECK(ParameterTable::describe(*table.find("frozen")) == "frozen [0, 4] Half frozen");
  CHECK(ParameterTable::describe(*table.find("block.gain")) == "block.gain [] Float = again.gain");
  b.block->gain.set_requires_grad(false);
  CHECK(ParameterTable::of(a).describe() != ParameterTable::of(b).describe());
}

TEST_CASE("mechanisms write placements, each its axis", "[unit]") {
  Block block;
  auto table = ParameterTable::of(*block);
  auto& row = *table.find("w.weight");
  row.placements.push_back({"tensor_parallel", weft::Shard{0}});
  row.placements.push_back({"data_parallel", weft::FlatShard{2, 4}});
  row.placements.push_back({"replicate", weft::Replicate{}});
  std::vector<weft::AxisPlacement> const expected = {
      {"tensor_parallel", weft::Shard{0}}, {"data_parallel", weft::FlatShard{2, 4}}, {"replicate", weft::Replicate{}}};
  CHECK(weft::model::divided_over(row) == std::vector<std::string>{"tensor_parallel", "data_parallel"});
  CHECK(
      (std::as_const(table).find("w.weight")->placements == expected));  // in brackets: c10 would have Catch2 print it
}

TEST_CASE("a model without parameters has an empty table", "[unit]") {
  torch::nn::Sequential model(torch::nn::ReLU{});
  auto const table = ParameterTable::of(*model);
  CHECK(table.size() == 0);
  CHECK(table.describe().empty());
}

}  // namespace
