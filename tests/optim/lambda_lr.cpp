#include "test.hpp"

#include "expect.hpp"

#include <cmath>

#include <weft/optim/adam.hpp>
#include <weft/optim/lambda_lr.hpp>
#include <weft/optim/optimizer.hpp>

using namespace test;

namespace {

std::vector<double> rates_of(torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

}  // namespace

TEST_CASE("LambdaLR has PyTorch's rates: the first at once, then one a step", "[optim]") {
  // torch.optim.lr_scheduler.LambdaLR(SGD(groups of lr 0.5 and 0.25), [lambda s: 0.95 ** s, lambda s: 1 / (s + 1)]), get_last_lr() of six steps, torch 2.15
  double const expected[][2] = {{0.5, 0.25},
                                {0.475, 0.125},
                                {0.45125, 0.08333333333333333},
                                {0.42868749999999994, 0.0625},
                                {0.40725312499999994, 0.05},
                                {0.3868904687499999, 0.041666666666666664}};
  auto const a = at::ones({1}).requires_grad_(), b = at::ones({1}).requires_grad_();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{a}, std::make_unique<torch::optim::SGDOptions>(0.5));
  groups.emplace_back(std::vector<at::Tensor>{b}, std::make_unique<torch::optim::SGDOptions>(0.25));
  weft::Optimizer<torch::optim::SGD> optimizer(
      std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(0.1)));
  weft::LambdaLR schedule(optimizer, {[](int64_t step) { return std::pow(0.95, step); },
                                      [](int64_t step) { return 1.0 / static_cast<double>(step + 1); }});
  for (auto const& [first, second] : expected) {
    CHECK(rates_of(optimizer)[0] == Catch::Approx(first).epsilon(1e-15));
    CHECK(rates_of(optimizer)[1] == Catch::Approx(second).epsilon(1e-15));
    schedule.step();
  }
  CHECK(schedule.position() == 6);
  schedule.resume(3);
  CHECK(rates_of(optimizer)[1] == 0.0625);
  schedule.step();
  CHECK((rates_of(optimizer)[1] == 0.05 && schedule.position() == 4));
}

TEST_CASE("LambdaLR refuses what it cannot do", "[optim]") {
  auto const made = weft::AdamW{.lr = 0.1}.make({{"a", at::ones({1}).requires_grad_()}});
  using Factors = std::vector<weft::LambdaLR::Factor>;
  auto const one = [](int64_t) { return 1.0; };
  CHECK(message_of([&] { weft::LambdaLR(*made, Factors{one, one}); }) ==
        "weft: LambdaLR: 2 factors for an optimizer of 1 parameter groups; give one for each, or one for all");
  CHECK(message_of([&] { weft::LambdaLR(*made, [](int64_t step) { return step == 0 ? 1.0 : NAN; }).step(); }) ==
        "weft: LambdaLR: the factor of step 1, group 0, is nan; return a number");
  CHECK(message_of([&] { weft::LambdaLR(*made, one).resume(-1); }) == "weft: LambdaLR: position -1; write 0 or more");
  CHECK(rates_of(*made)[0] == 0.1);
}
