#include "test.hpp"

#include <weft/optim/description.hpp>

#include <weft/optim/adam.hpp>
#include <weft/optim/optimizer.hpp>
#include <weft/optim/sgd.hpp>

#include <tuple>

namespace {

// A description of one's own: RMSprop, which weft has no description for.
struct RMSprop {
  double lr = 1e-2;
  std::unique_ptr<torch::optim::RMSprop> make(std::vector<weft::optim::NamedParameter> const& parameters) const {
    std::vector<at::Tensor> tensors;
    for (auto const& parameter : parameters) tensors.push_back(parameter.tensor);
    return std::make_unique<torch::optim::RMSprop>(std::move(tensors), torch::optim::RMSpropOptions(lr));
  }
};
struct MakesNothing {};
struct MakesAnInt {
  std::unique_ptr<int> make(std::vector<weft::optim::NamedParameter> const&) const { return nullptr; }
};

weft::optim::When name_has(std::string_view part) {
  return [part](std::string_view name, at::Tensor const&) { return name.find(part) != std::string_view::npos; };
}

std::vector<weft::optim::NamedParameter> backbone_norm_head() {
  auto ones = [] { return torch::ones({2}, torch::requires_grad()); };
  return {{"backbone.weight", ones()}, {"norm.weight", ones()}, {"head.weight", ones()}, {"head.bias", ones()}};
}
void give_gradients(std::vector<weft::optim::NamedParameter>& parameters) {
  for (auto& parameter : parameters) parameter.tensor.mutable_grad() = torch::ones({2});
}

}  // namespace

TEST_CASE("what counts as an optimizer description", "[optim]") {
  STATIC_REQUIRE(weft::OptimizerDescription<weft::SGD>);
  STATIC_REQUIRE(weft::OptimizerDescription<weft::Adam const&>);
  STATIC_REQUIRE(weft::OptimizerDescription<weft::AdamW&&>);
  STATIC_REQUIRE(weft::OptimizerDescription<RMSprop>);
  STATIC_REQUIRE(!weft::OptimizerDescription<MakesNothing>);
  STATIC_REQUIRE(!weft::OptimizerDescription<MakesAnInt>);
  STATIC_REQUIRE(!weft::OptimizerDescription<torch::optim::SGD>);
  STATIC_REQUIRE(!weft::OptimizerDescription<int>);
  STATIC_REQUIRE(weft::optim::TorchOptimizer<torch::optim::LBFGS&>);
  STATIC_REQUIRE(weft::optim::assert_optimizer<torch::optim::LBFGS&>());
  STATIC_REQUIRE(weft::optim::assert_optimizer<RMSprop>());
  STATIC_REQUIRE(std::is_same_v<weft::optim::made_by_t<weft::AdamW>, weft::optim::FusedAdamW>);
}

TEST_CASE("a description of one's own makes a torch optimizer", "[optim]") {
  auto parameters = backbone_norm_head();
  give_gradients(parameters);
  weft::Optimizer optimizer(RMSprop{.lr = 0.1}.make(parameters));
  optimizer.step();
  CHECK(at::allclose(parameters[0].tensor.detach(), torch::zeros({2}), 0, 1e-5));  // 1 - 0.1 / sqrt(0.01 * 1)
}

// Known fault NUM-25.
TEST_CASE("groups keep their learning rates and their order, and skipped parameters stay", "[optim]") {
  auto parameters = backbone_norm_head();
  auto optimizer = weft::SGD{.groups = {{.when = name_has("head"), .lr = 0.1},
                                        {.when = name_has("norm"), .lr = 0.01},
                                        {.when = name_has("backbone"), .skip = true}}}
                       .make(parameters);
  REQUIRE(optimizer->param_groups().size() == 2);
  CHECK(optimizer->param_groups()[0].options().get_lr() == 0.1);
  CHECK(optimizer->param_groups()[1].options().get_lr() == 0.01);
  CHECK(optimizer->param_groups()[0].params().size() == 2);
  give_gradients(parameters);
  optimizer->step();
  CHECK(at::equal(parameters[0].tensor, torch::ones({2})));
  CHECK(at::allclose(parameters[1].tensor.detach(), torch::full({2}, 0.99)));
  CHECK(at::allclose(parameters[2].tensor.detach(), torch::full({2}, 0.9)));
  CHECK(at::allclose(parameters[3].tensor.detach(), torch::full({2}, 0.9)));
}

TEST_CASE("the first group that matches wins, the rest keep the defaults", "[optim]") {
  auto parameters = backbone_norm_head();
  auto by_dim = [](std::string_view, at::Tensor const& p) { return p.dim() == 1; };
  auto optimizer = weft::AdamW{.lr = 0.5,
                               .weight_decay = 0.25,
                               .groups = {{.when = name_has("bias"), .weight_decay = 0.0},
                                          {.when = name_has("head"), .lr = 0.125, .betas = {{0.5, 0.75}}}}}
                       .make(parameters);
  REQUIRE(optimizer->param_groups().size() == 3);
  auto options = [&](int i) {
    return static_cast<torch::optim::AdamWOptions const&>(optimizer->param_groups()[i].options());
  };
  CHECK((options(0).lr() == 0.5 && options(0).weight_decay() == 0.0));
  CHECK((options(1).lr() == 0.125 && options(1).weight_decay() == 0.25 && options(1).betas() == std::tuple(0.5, 0.75)));
  CHECK((options(2).lr() == 0.5 && options(2).weight_decay() == 0.25 && options(2).betas() == std::tuple(0.9, 0.999)));
  CHECK(optimizer->param_groups()[2].params().size() == 2);
  CHECK(weft::AdamW{.groups = {{.when = by_dim}}}.make(parameters)->param_groups().size() == 1);
}

TEST_CASE("a group's 0 is a 0 where torch would take it for not given", "[optim]") {
  auto parameters = backbone_norm_head();
  auto optimizer = weft::SGD{.lr = 0.5,
                             .momentum = 0.9,
                             .weight_decay = 0.25,
                             .groups = {{.when = name_has("norm"), .momentum = 0.0, .weight_decay = 0.0}}}
                       .make(parameters);
  auto const& norm = static_cast<torch::optim::SGDOptions const&>(optimizer->param_groups()[0].options());
  CHECK(norm.weight_decay() == 0.0);
  CHECK(norm.momentum() == 0.0);
}

TEST_CASE("what does not fit a description is refused by name", "[optim]") {
  using Catch::Matchers::ContainsSubstring;
  auto parameters = backbone_norm_head();
  CHECK_THROWS_AS(weft::SGD{}.make({}), weft::ConfigurationError);
  CHECK_THROWS_WITH(weft::AdamW{}.make({}), ContainsSubstring("weft: AdamW: there are no parameters"));
  CHECK_THROWS_WITH((weft::SGD{.groups = {{.when = name_has("head")}, {.when = name_has("tail")}}}.make(parameters)),
                    ContainsSubstring("weft: SGD, groups[1]: .when holds for none"));
  CHECK_THROWS_WITH((weft::SGD{.groups = {{.when = name_has("tail"), .skip = true}}}.make(parameters)),
                    ContainsSubstring("groups[0]"));
  CHECK_THROWS_WITH((weft::SGD{.groups = {{.lr = 0.1}}}.make(parameters)),
                    ContainsSubstring("groups[0]: says nothing about its parameters"));
  CHECK_THROWS_WITH((weft::SGD{.groups = {{.when = name_has(""), .skip = true}}}.make(parameters)),
                    ContainsSubstring("every one of the 4 parameters"));
  parameters.push_back({"tied.weight", parameters[0].tensor});
  CHECK_THROWS_WITH(weft::SGD{}.make(parameters),
                    ContainsSubstring("backbone.weight and tied.weight are one parameter"));
  CHECK_THROWS_WITH(weft::SGD{}.make({{"gone", at::Tensor()}}), ContainsSubstring("parameter gone is undefined"));
}
