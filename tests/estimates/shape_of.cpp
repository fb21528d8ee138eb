#include "shard/models.hpp"

#include <weft/estimates/estimate.hpp>
#include <weft/estimates/shape_of.hpp>

#include "../../examples/transformer.hpp"

using namespace test;
using weft::ModelShape;
using Layers = weft::WrapPolicy<weft::nn::TransformerEncoderLayer, weft::nn::TransformerDecoderLayer>;

TEST_CASE("shape_of a Transformer is the arithmetic of examples/transformer.hpp", "[shard]") {
  constexpr transformer::Sizes small{.layers = 3, .width = 8, .feed_forward = 20, .heads = 2, .vocabulary = 31};
  transformer::Model const model(small);
  CHECK(weft::shape_of<weft::FSDP<weft::FullShard, Layers>>(model, 2) == transformer::shape(small, 2));
  CHECK(weft::shape_of<weft::Fabric<weft::FSDP<weft::FullShard, Layers>, weft::On<weft::Cpu>>>(model.ptr()) ==
        transformer::shape(small, 0));
  CHECK(weft::shape_of<weft::ZeRO<3, Layers>>(*model, 1) == transformer::shape(small, 1));
}

TEST_CASE("shape_of: units by each policy, tied and frozen parameters once, ignored ones not at all", "[shard]") {
  struct Half : torch::nn::Module {
    Half() {
      in = register_module("in", torch::nn::Linear(7, 7));
      block = register_module("block", Block());
      out = register_module("out", torch::nn::Linear(7, 7));
      register_parameter("tied", in->weight);
      out->bias.set_requires_grad(false);
    }
    torch::nn::Linear in = nullptr, out = nullptr;
    Block block = nullptr;
  };
  auto const model = std::make_shared<Half>();
  std::vector<weft::ParameterShape> const block = {{1}, {7}, {7}, {77}, {11}, {77}},
                                          rest = {{49}, {7}, {49}, {7, false}};
  auto const wrapped = weft::shape_of<weft::FSDP<weft::FullShard, weft::WrapPolicy<Block>>>(model);
  CHECK(wrapped == ModelShape{.units = {{.parameters = rest, .before_inner = 2}, {.parent = 0, .parameters = block}}});
  CHECK(weft::shape_of<weft::FSDP<weft::FullShard, weft::SizeBased<100>>>(model) == wrapped);
  CHECK(weft::shape_of<weft::FSDP<
            weft::FullShard, weft::WrapPolicy<Block>,
            weft::IgnoreIf<[](std::string const& name, at::Tensor const&) { return name == "block.up.bias"; }>>>(model)
            .units[1]
            .parameters.size() == 5);
  // One unit, in the order of the table.
  for (auto const& whole : {weft::shape_of<weft::DDP<>>(model), weft::shape_of<weft::SingleDevice>(model),
                            weft::shape_of<weft::FSDP<>>(model)}) {
    REQUIRE(whole.units.size() == 1);
    CHECK(whole.units[0].parameters.size() == 10);
  }
  model->to(at::kDouble);
  CHECK(weft::shape_of<weft::DDP<>>(model).element_bytes == 8);
  model->block->to(at::kHalf);
  CHECK_THAT(message_of([&] { weft::shape_of<weft::DDP<>>(model); }),
             Catch::Matchers::ContainsSubstring("tied is Double and block.scale is Half"));
  CHECK_THAT(message_of([&] { weft::shape_of<weft::FSDP<weft::FullShard, Layers>>(model); }),
             Catch::Matchers::ContainsSubstring("matches no module"));
}
