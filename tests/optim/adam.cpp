#include "test.hpp"

#include <weft/optim/adam.hpp>
#include <weft/optim/sgd.hpp>

#include "optim/compare.hpp"

namespace {

template <class Torch, class Options>
compare::MakeTorch torch_adam(Options options) {
  return
      [options](std::vector<at::Tensor> parameters) { return std::make_unique<Torch>(std::move(parameters), options); };
}

}  // namespace

TEST_CASE("Adam equals torch::optim::Adam", "[optim]") {
  struct Row {
    std::string name;
    weft::Adam ours;
    torch::optim::AdamOptions theirs;
  };
  using Options = torch::optim::AdamOptions;
  auto const row = GENERATE(values<Row>({
      {"plain", {.lr = 0.0317}, Options(0.0317)},
      {"weight decay", {.lr = 0.0317, .weight_decay = 0.07}, Options(0.0317).weight_decay(0.07)},
      {"amsgrad",
       {.lr = 0.0317, .betas = {0.8, 0.95}, .amsgrad = true},
       Options(0.0317).betas({0.8, 0.95}).amsgrad(true)},
      {"large eps", {.lr = 0.0317, .eps = 0.1}, Options(0.0317).eps(0.1)},
  }));
  auto const dtype = GENERATE(at::kFloat, at::kDouble);
  INFO(row.name << " in " << dtype);
  CHECK(compare::after_steps(row.ours, torch_adam<torch::optim::Adam>(row.theirs), dtype).relative <=
        (dtype == at::kDouble ? 1e-14 : 1e-6));
}

TEST_CASE("AdamW equals torch::optim::AdamW", "[optim]") {
  struct Row {
    std::string name;
    weft::AdamW ours;
    torch::optim::AdamWOptions theirs;
  };
  using Options = torch::optim::AdamWOptions;
  auto const row = GENERATE(values<Row>({
      {"plain", {.lr = 0.0317}, Options(0.0317)},
      {"no weight decay", {.lr = 0.0317, .weight_decay = 0}, Options(0.0317).weight_decay(0)},
      {"weight decay", {.lr = 0.0317, .weight_decay = 0.3}, Options(0.0317).weight_decay(0.3)},
      {"amsgrad",
       {.lr = 0.0317, .betas = {0.8, 0.95}, .amsgrad = true},
       Options(0.0317).betas({0.8, 0.95}).amsgrad(true)},
  }));
  auto const dtype = GENERATE(at::kFloat, at::kDouble);
  INFO(row.name << " in " << dtype);
  CHECK(compare::after_steps(row.ours, torch_adam<torch::optim::AdamW>(row.theirs), dtype).relative <=
        (dtype == at::kDouble ? 1e-14 : 1e-6));
}

TEST_CASE("Adam and AdamW maximize by descending the negative gradient", "[optim]") {
  CHECK(compare::after_steps(weft::Adam{.lr = 0.0317, .maximize = true},
                             torch_adam<torch::optim::Adam>(torch::optim::AdamOptions(0.0317)), at::kFloat, 20, true)
            .relative <= 1e-6);
  CHECK(compare::after_steps(weft::AdamW{.lr = 0.0317, .maximize = true},
                             torch_adam<torch::optim::AdamW>(torch::optim::AdamWOptions(0.0317)), at::kFloat, 20, true)
            .relative <= 1e-6);
}

// In bf16 and fp16 torch::optim rounds after every operation, the fused kernel once: they are as close as the dtype
// allows, and the fused one is the more exact. Both are held to the same steps in fp64.
TEST_CASE("AdamW in half precision is nearer to the exact result than torch's", "[optim]") {
  auto const dtype = GENERATE(at::kBFloat16, at::kHalf);
  std::vector<std::vector<std::int64_t>> const shapes{{4099}};
  auto run = [&](at::ScalarType compute, bool fused) {
    std::vector<at::Tensor> p = compare::draw(shapes, dtype, 1);
    p[0] = p[0].to(compute).requires_grad_();
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (fused)
      optimizer = weft::AdamW{.lr = 0.01, .eps = 1e-3}.make(compare::named(p));
    else
      optimizer = std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.01).eps(1e-3));
    for (int step = 0; step < 5; ++step) {
      p[0].mutable_grad() = compare::draw(shapes, dtype, 100 + step)[0].to(compute);
      optimizer->step();
    }
    return p[0].detach().to(at::kDouble);
  };
  at::Tensor const exact = run(at::kDouble, false);
  double const fused_error = (run(dtype, true) - exact).abs().mean().item<double>();
  double const torch_error = (run(dtype, false) - exact).abs().mean().item<double>();
  CHECK(fused_error <= torch_error);
  CHECK(fused_error <= (dtype == at::kHalf ? 1e-3 : 8e-3));
}

TEST_CASE("AdamW by hand", "[optim]") {
  // The first step is lr * sign(g) whatever the gradient's size, after lr * weight_decay of the parameter is taken off.
  at::Tensor p = torch::tensor({2.0, -4.0}, at::kDouble).requires_grad_();
  p.mutable_grad() = torch::tensor({1e-3, -7.0}, at::kDouble);
  auto optimizer = weft::AdamW{.lr = 0.1, .eps = 0, .weight_decay = 0.5}.make({{"p", p}});
  optimizer->step();
  CHECK(at::allclose(p.detach(), torch::tensor({2.0 * 0.95 - 0.1, -4.0 * 0.95 + 0.1}, at::kDouble), 1e-13, 1e-13));

  // Adam's weight decay goes through the gradient: 2 * 0.5 and -4 * 0.5 decide the sign here.
  at::Tensor q = torch::tensor({2.0, -4.0}, at::kDouble).requires_grad_();
  q.mutable_grad() = torch::tensor({-1e-3, 1e-3}, at::kDouble);
  weft::Adam{.lr = 0.1, .eps = 0, .weight_decay = 0.5}.make({{"q", q}})->step();
  CHECK(at::allclose(q.detach(), torch::tensor({1.9, -3.9}, at::kDouble), 1e-13, 1e-13));
}

// Known faults NUM-21 and NUM-23.
TEST_CASE("AdamW neither moves nor remembers frozen and unused parameters", "[optim]") {
  at::Tensor weight = torch::ones({2, 2}), bias = torch::ones({2}, torch::requires_grad()),
             unused = torch::ones({2}, torch::requires_grad());
  auto optimizer =
      weft::AdamW{.lr = 0.1, .weight_decay = 0.1}.make({{"weight", weight}, {"bias", bias}, {"unused", unused}});
  for (int step = 0; step < 3; ++step) {
    bias.mutable_grad() = torch::ones({2});
    optimizer->step();
  }
  CHECK(at::equal(weight, torch::ones({2, 2})));
  CHECK(at::equal(unused, torch::ones({2})));
  CHECK(optimizer->state().size() == 1);

  // Thawed later, it begins with step 1 beside a bias at step 4.
  weight.requires_grad_();
  weight.mutable_grad() = torch::ones({2, 2});
  optimizer->step();
  CHECK(at::allclose(weight.detach(), torch::full({2, 2}, 0.99f - 0.1f)));
  CHECK(static_cast<torch::optim::AdamWParamState&>(*optimizer->state().at(weight.unsafeGetTensorImpl())).step() == 1);
  CHECK(static_cast<torch::optim::AdamWParamState&>(*optimizer->state().at(bias.unsafeGetTensorImpl())).step() == 4);
}

TEST_CASE("AdamW goes on from a torch archive as if it had not stopped", "[optim]") {
  auto const amsgrad = GENERATE(false, true);
  auto gradient = [](int step) { return compare::draw({{37}}, at::kFloat, step)[0]; };
  auto steps = [&](torch::optim::Optimizer& optimizer, at::Tensor& p, int from, int to) {
    for (int step = from; step < to; ++step) {
      p.mutable_grad() = gradient(step);
      optimizer.step();
    }
  };
  weft::AdamW const description{.lr = 0.05, .amsgrad = amsgrad};
  at::Tensor p = torch::ones({37}, torch::requires_grad());
  auto optimizer = description.make({{"p", p}});
  steps(*optimizer, p, 0, 3);
  at::Tensor q = p.detach().clone().requires_grad_();
  at::Tensor r = p.detach().clone().requires_grad_();
  std::stringstream archive;
  torch::save(*optimizer, archive);
  steps(*optimizer, p, 3, 6);

  auto resumed = weft::AdamW{.lr = 0.7, .amsgrad = amsgrad}.make({{"q", q}});
  torch::load(*resumed, archive);
  steps(*resumed, q, 3, 6);
  CHECK(at::equal(p, q));

  // The archive is torch's own: its AdamW reads it.
  archive.clear();
  archive.seekg(0);
  torch::optim::AdamW theirs({r}, torch::optim::AdamWOptions(0.7));
  torch::load(theirs, archive);
  steps(theirs, r, 3, 6);
  CHECK(at::allclose(p.detach(), r.detach(), 1e-6, 1e-6));
}

TEST_CASE("impossible Adam options are refused by name", "[optim]") {
  using Catch::Matchers::ContainsSubstring;
  std::vector<weft::optim::NamedParameter> const one{{"p", torch::ones({1})}};
  CHECK_THROWS_WITH(weft::Adam{.lr = -1}.make(one), ContainsSubstring("weft: Adam: .lr = -1"));
  CHECK_THROWS_WITH((weft::AdamW{.lr = 1, .betas = {0.9, 1.0}}.make(one)),
                    ContainsSubstring("weft: AdamW: .betas = {0.9, 1}"));
  CHECK_THROWS_WITH((weft::AdamW{.lr = 1, .eps = -1}.make(one)), ContainsSubstring(".eps = -1"));
  CHECK_THROWS_WITH((weft::AdamW{.lr = 1, .weight_decay = -1}.make(one)), ContainsSubstring(".weight_decay = -1"));
  CHECK_THROWS_WITH(
      (weft::AdamW{.lr = 1, .groups = {{.when = [](std::string_view, at::Tensor const&) { return true; }, .lr = -2.0}}}
           .make(one)),
      ContainsSubstring("weft: AdamW, groups[0]: .lr = -2"));
}

TEST_CASE("NEW-06: complex parameters are stepped by real and imaginary part", "[optim][known]") {
  auto const values = at::randn({3, 5}, at::TensorOptions(at::kComplexFloat));
  auto const check = [&](auto const& description) {
    auto const whole = values.clone().requires_grad_(), parts = at::view_as_real(values).clone().requires_grad_();
    auto const of_whole = description.make({{"w", whole}}), of_parts = description.make({{"w", parts}});
    for (int step = 0; step < 4; ++step) {
      auto const gradient = at::randn({3, 5}, at::TensorOptions(at::kComplexFloat));
      whole.mutable_grad() = gradient;
      parts.mutable_grad() = at::view_as_real(gradient).clone();
      of_whole->step();
      of_parts->step();
      CHECK(at::view_as_real(whole.detach()).equal(parts.detach()));
    }
  };
  check(weft::AdamW{.lr = 0.1});
  check(weft::Adam{.lr = 0.1, .amsgrad = true});
  check(weft::SGD{.lr = 0.1});
  check(weft::SGD{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
}
