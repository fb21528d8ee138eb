#include "test.hpp"

#include <weft/optim/clip.hpp>

#include <cmath>
#include <limits>

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

at::Tensor with_gradient(at::Tensor gradient) {
  at::Tensor p = torch::zeros_like(gradient).requires_grad_();
  p.mutable_grad() = std::move(gradient);
  return p;
}
std::vector<at::Tensor> three_and_four(at::ScalarType dtype = at::kFloat) {
  return {with_gradient(torch::tensor({3.0}, dtype)), with_gradient(torch::tensor({-4.0}, dtype))};
}
bool is(at::Tensor const& tensor, double value) {
  return std::abs(tensor.item<double>() - value) <= 1e-6 * std::max(1.0, std::abs(value));
}

}  // namespace

// Known faults NUM-10 and NUM-11, on one process.
TEST_CASE("ClipNorm returns the norm and scales to it", "[optim]") {
  struct Row {
    double order, norm;
  };
  auto const row = GENERATE(
      values<Row>({{2, 5}, {1, 7}, {infinity, 4}, {0.5, std::pow(std::sqrt(3.0) + 2.0, 2)}, {3, std::cbrt(91.0)}}));
  auto parameters = three_and_four();
  CHECK(is(weft::optim::clip(parameters, weft::ClipNorm{.max_norm = 1, .norm_type = row.order}), row.norm));
  CHECK(is(parameters[0].grad(), 3 / row.norm));
  CHECK(is(parameters[1].grad(), -4 / row.norm));
}

TEST_CASE("partial norms of shards make the norm of the whole", "[optim]") {
  struct Row {
    double order, norm;
  };
  auto const row = GENERATE(values<Row>({{2, 5}, {1, 7}, {infinity, 4}, {0.5, std::pow(std::sqrt(3.0) + 2.0, 2)}}));
  auto parameters = three_and_four();
  at::Tensor const first = weft::optim::partial_norm(weft::optim::gradients_of({parameters[0]}), row.order);
  at::Tensor const second = weft::optim::partial_norm(weft::optim::gradients_of({parameters[1]}), row.order);
  at::Tensor const empty = weft::optim::partial_norm({}, row.order);
  at::Tensor const total = std::isinf(row.order) ? at::max(at::max(first, second), empty) : first + second + empty;
  CHECK(is(weft::optim::norm_of(total, row.order), row.norm));
}

TEST_CASE("ClipNorm agrees with torch::nn::utils::clip_grad_norm_", "[optim]") {
  auto const order = GENERATE(1.0, 2.0, 0.5, 3.0, infinity);
  auto const dtype = GENERATE(at::kFloat, at::kDouble);
  torch::manual_seed(3);
  std::vector<at::Tensor> ours, theirs;
  for (std::vector<std::int64_t> const& shape : {std::vector<std::int64_t>{}, {1}, {7, 5}, {1000}, {33, 3}}) {
    at::Tensor const gradient = torch::randn(shape, dtype);
    ours.push_back(with_gradient(gradient.clone()));
    theirs.push_back(with_gradient(gradient.clone()));
  }
  at::Tensor const norm = weft::optim::clip(ours, weft::ClipNorm{1.5, order});
  CHECK(norm.scalar_type() == dtype);
  CHECK(norm.dim() == 0);
  double const expected = torch::nn::utils::clip_grad_norm_(theirs, 1.5, order);
  double const tolerance = dtype == at::kDouble ? 1e-13 : 1e-6;
  CHECK(std::abs(norm.item<double>() / expected - 1) <= tolerance);
  for (std::size_t i = 0; i < ours.size(); ++i)
    CHECK(at::allclose(ours[i].grad(), theirs[i].grad(), tolerance, tolerance));
}

TEST_CASE("a norm within the bound leaves every bit of the gradients", "[optim]") {
  auto parameters = three_and_four();
  parameters[0].mutable_grad().fill_(0.1f);
  at::Tensor const before = parameters[0].grad().clone();
  auto const version = parameters[0].grad()._version();
  weft::optim::clip(parameters, weft::ClipNorm{100});
  CHECK(at::equal(parameters[0].grad(), before));
  CHECK(parameters[0].grad()._version() == version);
}

// Known fault NUM-12, on one process.
TEST_CASE("a norm that is not finite is an error before any change, unless told otherwise", "[optim]") {
  auto const bad = GENERATE(infinity, std::nan(""));
  auto const order = GENERATE(2.0, infinity);
  auto parameters = three_and_four();
  parameters[1].mutable_grad().fill_(bad);
  CHECK_THROWS_AS(weft::optim::clip(parameters, weft::ClipNorm{1, order}), weft::Error);
  CHECK_THROWS_WITH(weft::optim::clip(parameters, weft::ClipNorm{1, order}),
                    Catch::Matchers::ContainsSubstring("not finite"));
  CHECK(is(parameters[0].grad(), 3));

  at::Tensor const norm = weft::optim::clip(
      parameters, weft::ClipNorm{.max_norm = 1, .norm_type = order, .error_if_nonfinite = false});
  CHECK(!std::isfinite(norm.item<double>()));
  CHECK(std::isnan(norm.item<double>()) == std::isnan(bad));
  if (std::isinf(bad)) CHECK(is(parameters[0].grad(), 0));
}

TEST_CASE("ClipNorm takes parameters without gradient, empty ones and mixed dtypes", "[optim]") {
  auto parameters = three_and_four(at::kBFloat16);
  parameters.push_back(torch::ones({3}, torch::requires_grad()));
  parameters.push_back(with_gradient(torch::ones({0, 2})));
  parameters.push_back(with_gradient(torch::tensor(12.0, at::kDouble)));
  auto const order = GENERATE(2.0, infinity);
  at::Tensor const norm = weft::optim::clip(parameters, weft::ClipNorm{1, order});
  CHECK(norm.scalar_type() == at::kDouble);
  CHECK(is(norm, std::isinf(order) ? 12 : 13));
  CHECK(std::abs(parameters[0].grad().item<double>() - 3 / norm.item<double>()) < 2e-3);
  CHECK(is(parameters[4].grad(), 12 / norm.item<double>()));
  CHECK(!parameters[2].grad().defined());
}

TEST_CASE("ClipNorm without gradients returns 0", "[optim]") {
  CHECK(weft::optim::clip({}, weft::ClipNorm{1}).item<double>() == 0);
  CHECK(weft::optim::clip({torch::ones({2}, torch::requires_grad())}, weft::ClipNorm{1}).item<double>() == 0);
}

TEST_CASE("a norm that overflows fp16 is still a number", "[optim]") {
  std::vector<at::Tensor> parameters{with_gradient(torch::full({100}, 30000.0, at::kHalf))};
  CHECK(is(weft::optim::clip(parameters, weft::ClipNorm{1}), 300000));
  CHECK(std::abs(parameters[0].grad()[0].item<double>() - 0.1) < 1e-3);
}

TEST_CASE("ClipValue cuts each element", "[optim]") {
  std::vector<at::Tensor> parameters{with_gradient(torch::tensor({-2.0f, -0.25f, 0.25f, 2.0f})),
                                     torch::ones({1}, torch::requires_grad())};
  weft::optim::clip(parameters, weft::ClipValue{0.5});
  CHECK(at::equal(parameters[0].grad(), torch::tensor({-0.5f, -0.25f, 0.25f, 0.5f})));
}

TEST_CASE("gradients that are views of a bucket are clipped in the bucket", "[optim]") {
  at::Tensor bucket = torch::tensor({3.0f, 4.0f});
  at::Tensor p = torch::zeros({1}, torch::requires_grad()), q = torch::zeros({1}, torch::requires_grad());
  p.mutable_grad() = bucket.narrow(0, 0, 1);
  q.mutable_grad() = bucket.narrow(0, 1, 1);
  weft::optim::clip({p, q}, weft::ClipNorm{1});
  CHECK(at::allclose(bucket, torch::tensor({0.6f, 0.8f})));
}

TEST_CASE("impossible bounds are refused", "[optim]") {
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(weft::optim::clip({}, weft::ClipNorm{-1}), ContainsSubstring(".max_norm = -1"));
  CHECK_THROWS_WITH(weft::optim::clip({}, weft::ClipNorm{std::nan("")}), ContainsSubstring(".max_norm = nan"));
  CHECK_THROWS_WITH((weft::optim::clip({}, weft::ClipNorm{1, 0})), ContainsSubstring(".norm_type = 0"));
  CHECK_THROWS_WITH(weft::optim::clip({}, weft::ClipValue{-1}), ContainsSubstring(".limit = -1"));
  CHECK_THROWS_AS(weft::optim::clip({}, weft::ClipValue{-1}), weft::ConfigurationError);
}
