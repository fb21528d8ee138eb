#include "test.hpp"

#include <weft/optim/sgd.hpp>

#include "optim/compare.hpp"

namespace {

compare::MakeTorch torch_sgd(torch::optim::SGDOptions options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), options);
  };
}

at::Tensor parameter(std::vector<double> values, std::vector<double> gradient = {}) {
  at::Tensor p = torch::tensor(values, at::kDouble).requires_grad_();
  if (!gradient.empty()) p.mutable_grad() = torch::tensor(gradient, at::kDouble);
  return p;
}
bool is(at::Tensor const& tensor, std::vector<double> const& values) {
  return at::allclose(tensor.detach(), torch::tensor(values, at::kDouble), 1e-14, 1e-14);
}

}  // namespace

TEST_CASE("SGD equals torch::optim::SGD", "[optim]") {
  struct Row {
    std::string name;
    weft::SGD ours;
    torch::optim::SGDOptions theirs;
  };
  using Options = torch::optim::SGDOptions;
  auto const row = GENERATE(values<Row>({
      {"plain", {.lr = 0.0317}, Options(0.0317)},
      {"lr 0", {.lr = 0.0}, Options(0.0)},
      {"momentum", {.lr = 0.0317, .momentum = 0.9}, Options(0.0317).momentum(0.9)},
      {"dampening", {.lr = 0.0317, .momentum = 0.9, .dampening = 0.3}, Options(0.0317).momentum(0.9).dampening(0.3)},
      {"nesterov", {.lr = 0.0317, .momentum = 0.9, .nesterov = true}, Options(0.0317).momentum(0.9).nesterov(true)},
      {"weight decay", {.lr = 0.0317, .weight_decay = 0.07}, Options(0.0317).weight_decay(0.07)},
      {"all",
       {.lr = 0.0317, .momentum = 0.8, .weight_decay = 0.07, .nesterov = true},
       Options(0.0317).momentum(0.8).weight_decay(0.07).nesterov(true)},
  }));
  auto const dtype = GENERATE(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf);
  INFO(row.name << " in " << dtype);
  auto const distance = compare::after_steps(row.ours, torch_sgd(row.theirs), dtype);
  CHECK(distance.relative <= (dtype == at::kDouble ? 1e-14 : 1e-6));
  // The fused kernel multiplies and adds momentum in one rounding, torch in two; everything else is the same to the
  // bit.
  if (row.ours.momentum == 0 || c10::isReducedFloatingType(dtype)) CHECK(distance.bitwise);
}

TEST_CASE("SGD maximizes by descending the negative gradient", "[optim]") {
  auto const dtype = GENERATE(at::kFloat, at::kBFloat16);
  auto const momentum = GENERATE(0.0, 0.9);
  auto const distance = compare::after_steps(weft::SGD{.lr = 0.0317, .momentum = momentum, .maximize = true},
                                             torch_sgd(torch::optim::SGDOptions(0.0317).momentum(momentum)), dtype, 20,
                                             true);
  CHECK(distance.relative <= 1e-6);
  if (momentum == 0 || dtype == at::kBFloat16) CHECK(distance.bitwise);
}

TEST_CASE("SGD by hand", "[optim]") {
  SECTION("plain") {
    at::Tensor p = parameter({1, 2}, {10, -20});
    weft::SGD{.lr = 0.1}.make({{"p", p}})->step();
    CHECK(is(p, {0, 4}));
  }
  SECTION("momentum begins with the gradient itself, whatever the dampening") {
    at::Tensor p = parameter({1}, {1});
    auto optimizer = weft::SGD{.lr = 1, .momentum = 0.5, .dampening = 0.5}.make({{"p", p}});
    optimizer->step();
    CHECK(is(p, {0}));
    optimizer->step();  // buffer 0.5 * 1 + 0.5 * 1
    CHECK(is(p, {-1}));
  }
  SECTION("weight decay") {
    at::Tensor p = parameter({2}, {0});
    weft::SGD{.lr = 0.5, .weight_decay = 0.5}.make({{"p", p}})->step();
    CHECK(is(p, {1.5}));
  }
}

// Known fault NUM-21.
TEST_CASE("SGD leaves a parameter without gradient where it is", "[optim]") {
  at::Tensor used = parameter({1}, {1}), unused = parameter({1});
  auto optimizer = weft::SGD{.lr = 1, .momentum = 0.9, .weight_decay = 0.1}.make({{"used", used}, {"unused", unused}});
  for (int i = 0; i < 3; ++i) optimizer->step();
  CHECK(is(unused, {1}));
  CHECK(!unused.grad().defined());
  CHECK(optimizer->state().size() == 1);

  // A parameter that had a gradient once is not carried on by its momentum.
  at::Tensor const before = used.detach().clone();
  at::Tensor const buffer =
      static_cast<torch::optim::SGDParamState&>(*optimizer->state().at(used.unsafeGetTensorImpl())).momentum_buffer();
  at::Tensor const buffer_before = buffer.clone();
  used.mutable_grad().reset();
  optimizer->step();
  CHECK(at::equal(used, before));
  CHECK(at::equal(buffer, buffer_before));
}

TEST_CASE("SGD steps parameters of any layout and of several dtypes in one group", "[optim]") {
  auto const momentum = GENERATE(0.0, 0.9);
  auto make = [] {
    std::vector<at::Tensor> all;
    all.push_back(at::arange(12, at::kFloat).reshape({3, 4}).t());                // dense, transposed
    all.push_back(at::arange(24, at::kFloat).reshape({4, 6}).slice(1, 0, 6, 2));  // with gaps
    all.push_back(at::arange(48, at::kDouble).reshape({1, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast));
    all.push_back(at::arange(5, at::kBFloat16));
    for (auto& p : all) p.requires_grad_();
    return all;
  };
  std::vector<at::Tensor> ours = make(), theirs = make();
  auto optimizer = weft::SGD{.lr = 0.01, .momentum = momentum}.make(compare::named(ours));
  torch::optim::SGD reference(theirs, torch::optim::SGDOptions(0.01).momentum(momentum));
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < ours.size(); ++i) {
      at::Tensor const gradient = at::arange(ours[i].numel(), ours[i].scalar_type())
                                      .reshape(ours[i].sizes())
                                      .add(step);  // contiguous, unlike its parameter
      ours[i].mutable_grad() = gradient;
      theirs[i].mutable_grad() = gradient;
    }
    optimizer->step();
    reference.step();
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    INFO("parameter " << i);
    CHECK(at::allclose(ours[i], theirs[i], 1e-6, 1e-6));
    if (momentum == 0 || i == 3) CHECK(at::equal(ours[i], theirs[i]));
  }
}

TEST_CASE("a step is seen by autograd as a change in place", "[optim]") {
  at::Tensor p = torch::ones({2}, torch::requires_grad());
  at::Tensor const loss = (p * p).sum();
  p.mutable_grad() = torch::ones({2});
  auto optimizer = weft::SGD{.lr = 0.1}.make({{"p", p}});
  optimizer->step();
  CHECK_THROWS_WITH(loss.backward(), Catch::Matchers::ContainsSubstring("modified by an inplace operation"));
}

TEST_CASE("a gradient that no longer fits its parameter is an error", "[optim]") {
  at::Tensor p = parameter({1, 2, 3}, {1, 2, 3});
  auto optimizer = weft::SGD{.lr = 0.1}.make({{"p", p}});
  p.set_data(torch::ones({2}, at::kDouble));
  CHECK_THROWS_AS(optimizer->step(), weft::Error);
  CHECK(is(p, {1, 1}));

  at::Tensor sparse = torch::ones({2, 2}, torch::requires_grad());
  sparse.mutable_grad() = torch::ones({2, 2}).to_sparse();
  CHECK_THROWS_WITH(weft::SGD{.lr = 0.1}.make({{"p", sparse}})->step(), Catch::Matchers::ContainsSubstring("sparse"));
}

TEST_CASE("impossible SGD options are refused by name", "[optim]") {
  using Catch::Matchers::ContainsSubstring;
  std::vector<weft::optim::NamedParameter> const one{{"p", parameter({1})}};
  CHECK_THROWS_WITH(weft::SGD{.lr = -0.1}.make(one), ContainsSubstring("weft: SGD: .lr = -0.1"));
  CHECK_THROWS_WITH(weft::SGD{.lr = std::nan("")}.make(one), ContainsSubstring(".lr = nan"));
  CHECK_THROWS_WITH((weft::SGD{.lr = 1, .momentum = -1}.make(one)), ContainsSubstring(".momentum = -1"));
  CHECK_THROWS_WITH((weft::SGD{.lr = 1, .weight_decay = -1}.make(one)), ContainsSubstring(".weight_decay = -1"));
  CHECK_THROWS_WITH((weft::SGD{.lr = 1, .nesterov = true}.make(one)), ContainsSubstring(".nesterov needs .momentum"));
  CHECK_THROWS_AS(weft::SGD{.lr = -0.1}.make(one), weft::ConfigurationError);
}
