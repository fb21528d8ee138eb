#include "precisions.hpp"

#include <cmath>

#include <weft/nn/linear.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::precision::LossScaler;
using weft::precision::LossScalerState;

namespace {

/// One parameter whose gradient is what the test says, and what a scaler knows of it.
struct Weight {
  explicit Weight(LossScaler& scaler, at::ScalarType dtype = at::kFloat)
      : w(torch::ones({2}, dtype).requires_grad_()), gradients(scaler.watch([this] { return std::vector{w}; })) {}
  at::Tensor loss(at::Tensor const& gradient) const { return (w * gradient).sum().to(at::kFloat); }
  at::Tensor w;
  std::shared_ptr<LossScaler::Gradients> gradients;
};
auto const fine = at::tensor({0.3f, 0.4f});
auto const overflow = at::tensor({INFINITY, 0.4f});

bool step(LossScaler& scaler, Weight const& weight, at::Tensor const& gradient) {
  scaler.backward(weight.loss(gradient));
  bool const stepped = weight.gradients->begin_step();
  weight.w.mutable_grad().reset();
  weight.gradients->forget();
  return stepped;
}

}  // namespace

TEST_CASE("the scale grows after an interval of steps, and backs off at once", "[precision]") {
  auto const scaler = std::make_shared<LossScaler>(
      weft::LossScaling{.initial_scale = 8, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 2});
  Weight const weight(*scaler);
  struct Row {
    bool overflows;
    LossScalerState after;
  };
  for (auto const& row : {Row{false, {8, 1}},
                          {false, {32, 0}},
                          {false, {32, 1}},
                          {true, {8, 0}},
                          {true, {2, 0}},
                          {false, {2, 1}},
                          {false, {8, 0}}}) {
    CHECK(step(*scaler, weight, row.overflows ? overflow : fine) != row.overflows);
    CHECK(scaler->state() == row.after);
    CHECK(scaler->scale() == row.after.scale);  // asking changes nothing
  }
}

TEST_CASE("the scale stays finite", "[precision]") {
  auto const scaler = std::make_shared<LossScaler>(weft::LossScaling{.initial_scale = 3e38, .growth_interval = 1});
  Weight const weight(*scaler);
  CHECK(step(*scaler, weight, at::zeros({2})));
  CHECK(scaler->scale() == static_cast<double>(3e38f));
}

TEST_CASE(
    "several optimizers: one update a step, whoever overflows, and each is unscaled by the scale of its gradients",
    "[precision]") {
  for (bool const first_overflows : {false, true})
    for (bool const second_overflows : {false, true}) {
      auto const scaler = std::make_shared<LossScaler>(weft::LossScaling{.initial_scale = 4, .growth_interval = 1});
      Weight const first(*scaler), second(*scaler);
      scaler->backward(first.loss(first_overflows ? overflow : fine) + second.loss(second_overflows ? overflow : fine));
      CHECK(first.gradients->begin_step() != first_overflows);
      scaler->scale();
      CHECK(second.gradients->begin_step() != second_overflows);
      CHECK(at::allclose(second.w.grad(), second_overflows ? overflow : fine));
      CHECK(scaler->scale() == (first_overflows || second_overflows ? 2 : 8));
      CHECK(scaler->state().steps_since_change == 0);
    }
}

TEST_CASE("gradients are unscaled once in a step, and what outlives it is never a sum of two scales", "[precision]") {
  auto const scaler = std::make_shared<LossScaler>(weft::LossScaling{.initial_scale = 4, .growth_interval = 1});
  Weight const often(*scaler), seldom(*scaler);
  scaler->backward(often.loss(fine) + seldom.loss(fine));
  CHECK(often.gradients->unscale());
  CHECK(often.gradients->unscale());
  CHECK(at::allclose(often.w.grad(), fine));
  CHECK(often.gradients->begin_step());
  CHECK(at::allclose(seldom.w.grad(), 4 * fine));
  // The next pass has another scale, and nobody set gradients to zero.
  scaler->backward(often.loss(fine) + seldom.loss(fine));
  CHECK(at::allclose(seldom.w.grad(), 8 * 2 * fine));
  CHECK(seldom.gradients->begin_step());
  CHECK(often.gradients->begin_step());
  CHECK(at::allclose(often.w.grad(), 2 * fine));
  CHECK(at::allclose(seldom.w.grad(), 2 * fine));
}

TEST_CASE("gradients that a program writes itself have no scale to take away", "[precision]") {
  auto const scaler = std::make_shared<LossScaler>();
  Weight const weight(*scaler);
  weight.w.mutable_grad() = fine.clone();
  CHECK(weight.gradients->begin_step());
  CHECK(weight.w.grad().equal(fine));
  weight.w.mutable_grad() = overflow.clone();
  weight.gradients->forget();
  CHECK_FALSE(weight.gradients->begin_step());
}

TEST_CASE(
    "a backward that leaves an optimizer without gradients gives it no scale: what a program then writes there has "
    "none",
    "[precision]") {
  auto const scaler = std::make_shared<LossScaler>(weft::LossScaling{.initial_scale = 4});
  Weight const reached(*scaler), by_hand(*scaler);
  scaler->backward(reached.loss(fine));
  by_hand.w.mutable_grad() = fine.clone();
  CHECK(by_hand.gradients->begin_step());
  CHECK(by_hand.w.grad().equal(fine));
  CHECK(reached.gradients->begin_step());
  CHECK(at::allclose(reached.w.grad(), fine));
}

TEST_CASE("a scale that changes reaches gradients once, though two optimizers are over them", "[precision]") {
  auto const scaler = std::make_shared<LossScaler>(weft::LossScaling{.initial_scale = 4, .growth_interval = 1});
  Weight const seldom(*scaler), often(*scaler);
  auto const replaced = scaler->watch([&seldom] { return std::vector{seldom.w}; });
  scaler->backward(seldom.loss(fine));
  auto const grow = [&](bool unscales) {
    CHECK(step(*scaler, often, fine));
    if (unscales) CHECK(seldom.gradients->unscale());  // the other one is not told
    scaler->backward(often.loss(fine));
    often.w.mutable_grad().reset();
    often.gradients->forget();
  };
  grow(false);
  CHECK(scaler->scale() == 8);
  CHECK(at::allclose(seldom.w.grad(), 8 * fine));
  grow(true);
  CHECK(scaler->scale() == 16);
  CHECK(at::allclose(seldom.w.grad(), 16 * fine));
  CHECK(seldom.gradients->begin_step());
  CHECK(at::allclose(seldom.w.grad(), fine));
}

TEST_CASE("no gradients, several dtypes, sparse ones, views; gradients of fp16 are refused", "[precision]") {
  auto const scaler = std::make_shared<LossScaler>(weft::LossScaling{.initial_scale = 2});
  Weight const none(*scaler), whole(*scaler), twice(*scaler, at::kDouble), low(*scaler, at::kBFloat16),
      half(*scaler, at::kHalf);
  auto const table = torch::ones({4, 2}).requires_grad_();
  auto const sparse = scaler->watch([&] { return std::vector{table}; });
  CHECK(none.gradients->begin_step());
  scaler->backward(whole.loss(fine) + twice.loss(fine) + low.loss(fine) + half.loss(fine) +
                   at::embedding(table, at::tensor({1, 1}, at::kLong), -1, false, /*sparse=*/true).sum());
  auto const bucket = at::zeros({4});
  auto const view = bucket.narrow(0, 1, 2).copy_(whole.w.grad());
  whole.w.mutable_grad() = view;
  CHECK(whole.gradients->begin_step());
  CHECK(at::allclose(bucket, at::tensor({0.f, 0.3f, 0.4f, 0.f})));
  CHECK(twice.gradients->begin_step());
  CHECK(at::allclose(twice.w.grad(), fine.to(at::kDouble)));
  CHECK(low.gradients->begin_step());
  CHECK(at::allclose(low.w.grad().to(at::kFloat), fine, 1e-2));
  CHECK(sparse->begin_step());
  CHECK(table.grad().to_dense().equal(at::tensor({0.f, 0.f, 2.f, 2.f, 0.f, 0.f, 0.f, 0.f}).view({4, 2})));
  CHECK_THROWS_WITH(half.gradients->unscale(), ContainsSubstring("is of fp16 and cannot be unscaled"));
}

TEST_CASE("a scaler's state is what it goes on from", "[precision]") {
  weft::LossScaling const how{.initial_scale = 16, .growth_interval = 3};
  auto const one = std::make_shared<LossScaler>(how), other = std::make_shared<LossScaler>(how);
  Weight const weight(*one), same(*other);
  step(*one, weight, overflow);
  step(*one, weight, fine);
  step(*one, weight, fine);
  other->load(one->state());
  CHECK(other->state() == LossScalerState{8, 2});
  for (auto* const scaler : {one.get(), other.get()}) step(*scaler, scaler == one.get() ? weight : same, fine);
  CHECK(other->state() == LossScalerState{16, 0});
  CHECK(other->state() == one->state());
  // In the middle of a step: the gradients that are there go on under the loaded scale.
  other->backward(same.loss(fine));
  other->load({1024, 0});
  CHECK(same.gradients->begin_step());
  CHECK(at::allclose(same.w.grad(), fine));
  for (auto const& bad : {LossScalerState{0, 0}, {-1, 0}, {NAN, 0}, {2, -1}, {1e-60, 0}, {INFINITY, 0}})
    CHECK_THROWS_AS(other->load(bad), weft::ConfigurationError);
}

TEST_CASE("after overflows without end the scale is one that a good step can still be taken with", "[precision]") {
  auto const scaler = std::make_shared<LossScaler>(weft::LossScaling{});
  Weight const weight(*scaler);
  for (int overflows = 0; overflows < 200; ++overflows) CHECK_FALSE(step(*scaler, weight, overflow));
  CHECK(scaler->scale() == std::numeric_limits<float>::min());
  scaler->backward(weight.loss(fine));
  CHECK(weight.gradients->begin_step());
  CHECK(weight.w.grad().isfinite().all().item<bool>());
}

TEST_CASE("impossible scalings are refused with what to give", "[precision]") {
  CHECK_THROWS_WITH(LossScaler(weft::LossScaling{.initial_scale = 0}),
                    ContainsSubstring(".initial_scale = 0: give a number above 0"));
  CHECK_THROWS_WITH(LossScaler(weft::LossScaling{.initial_scale = 1e39}),
                    ContainsSubstring(".initial_scale = 1e+39: give a number above 0 that a float can hold"));
  CHECK_THROWS_WITH(LossScaler(weft::LossScaling{.growth_factor = 1}), ContainsSubstring(".growth_factor = 1"));
  CHECK_THROWS_WITH(LossScaler(weft::LossScaling{.backoff_factor = 1}), ContainsSubstring(".backoff_factor = 1"));
  CHECK_THROWS_WITH(LossScaler(weft::LossScaling{.growth_interval = 0}), ContainsSubstring(".growth_interval = 0"));
}

TEST_CASE("NUM-13: gradients are unscaled before they are clipped", "[precision][known]") {
  in<Scaled>([](In<Scaled>& fabric) {
    auto [model, optimizer] = fabric.setup(Pair(), weft::SGD{.lr = 1});
    fabric.backward(model(at::tensor({0.3f, 0.4f})));
    expect(at::allclose(model->w.grad(), 1024 * fine), "scaled");
    expect(std::abs(fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0}).template item<double>() - 0.5) < 1e-6,
           "the norm without the scale");
    expect(optimizer.step() && at::allclose(model->w, 1 - fine), "the step uses (0.3, 0.4)");
    optimizer.zero_grad();
    fabric.backward(model(at::tensor({0.3f, -4.f})));
    fabric.clip_gradients(model, optimizer, weft::ClipValue{0.5});
    expect(at::allclose(model->w.grad(), at::tensor({0.3f, -0.5f})), "values are cut without the scale, too");
  });
}

namespace {

template <class Run>
void clips_to_one(int world) {
  on<Run>(world, [](Run& fabric) {
    auto [model, optimizer] = fabric.setup(Pair(), weft::SGD{.lr = 1});
    fabric.backward(model(at::tensor({30.f, 40.f}, fabric.device())));
    expect(std::abs(fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0}).template item<double>() - 50) < 1e-3,
           "norm before");
    auto const after = weft::optim::clip(model.parameters(), weft::ClipNorm{INFINITY}).template item<double>();
    expect(std::abs(after - 1) < 5e-3, "norm after: " + std::to_string(after));
    expect(optimizer.step() && at::allclose(model->w.detach().to(at::kFloat).cpu(), at::tensor({0.4f, 0.2f}), 0, 5e-3),
           "the step");
  });
}

}  // namespace

TEST_CASE("NUM-14: clipping works in every precision", "[precision][known]") {
  clips_to_one<In<weft::Fp32>>(1);
  clips_to_one<In<weft::Fp64>>(1);
  clips_to_one<In<weft::Bf16>>(1);
  clips_to_one<In<weft::Bf16Mixed>>(1);
  clips_to_one<InFp16<>>(1);
  clips_to_one<In<weft::Bf16, weft::DDP<>>>(2);
  clips_to_one<In<weft::Bf16Mixed, weft::DDP<>>>(2);
  clips_to_one<In<Scaled, weft::DDP<>>>(2);
}

TEST_CASE("NUM-15: one rank's overflow is every rank's, and what overflowed is no error when it is clipped",
          "[precision][known]") {
  on<In<Scaled, weft::DDP<>>>(2, [](In<Scaled, weft::DDP<>>& fabric) {
    fabric.loss_scaler().load({2, 0});
    auto [model, optimizer] = fabric.setup(Pair(), weft::SGD{.lr = 1});
    for (bool const clips : {false, true}) {
      auto const before = fabric.loss_scaler().scale();
      fabric.backward(model(fabric.global_rank() == 0 ? at::tensor({INFINITY, 1.f}) : at::tensor({1.f, 1.f})));
      if (clips)
        expect(std::isinf(fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0}).template item<double>()),
               "the norm says it");
      expect(!optimizer.step(), "skipped");
      optimizer.zero_grad();
      expect(fabric.loss_scaler().scale() == before / 2, "halved");
      expect(model->w.equal(at::ones({2})), "parameters are untouched");
    }
  });
}

TEST_CASE("NUM-16: accumulated under the scaler, clipped at the step, once or twice", "[precision][known]") {
  auto const train = []<class Precision>(std::type_identity<Precision>, int clips) {
    at::Tensor result;
    in<Precision>([&](In<Precision>& fabric) {
      auto [model, optimizer] = fabric.setup(Pair(), weft::AdamW{.lr = 0.1});
      for (int i = 0; i < 4; ++i) {
        for (int micro = 0; micro < 3; ++micro) {
          auto const guard = fabric.no_backward_sync(model, micro < 2);
          fabric.backward(model(at::tensor({1.f + i, 2.f - micro})) / 3);
        }
        for (int k = 0; k < clips; ++k) fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0});
        expect(optimizer.step(), "a step");
        optimizer.zero_grad();
      }
      result = model->w.detach().clone();
    });
    return result;
  };
  for (int const clips : {0, 1, 2})
    CHECK(
        at::allclose(train(std::type_identity<Scaled>(), clips), train(std::type_identity<weft::Fp32>(), clips), 1e-6));
}

TEST_CASE("gradients that are clipped, accumulated further and not set to zero are those of a run without scaling",
          "[precision]") {
  auto const train = []<class Precision>(std::type_identity<Precision>) {
    at::Tensor result;
    in<Precision>([&](In<Precision>& fabric) {
      auto [model, optimizer] = fabric.setup(Pair(), weft::SGD{.lr = 0.1});
      for (int i = 0; i < 8; ++i) {
        fabric.backward(model(at::tensor({1.f + i, 2.f - i})));
        fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0});
        fabric.backward(model(at::tensor({-1.f, 0.5f})));
        optimizer.step();
        if (i % 3 == 2) optimizer.zero_grad(/*set_to_none=*/i % 2 == 0);
      }
      result = model->w.detach().clone();
    });
    return result;
  };
  CHECK(at::allclose(train(std::type_identity<Scaled>()), train(std::type_identity<weft::Fp32>()), 1e-5));
}

TEST_CASE("NUM-17: step() says whether it was taken, so that a schedule does not run ahead", "[precision][known]") {
  in<Scaled>([](In<Scaled>& fabric) {
    auto [model, optimizer] = fabric.setup(Pair(), weft::SGD{.lr = 1});
    torch::optim::StepLR schedule(optimizer, 1, 0.5);
    std::vector<double> rates;
    for (int i = 0; i < 3; ++i) {
      fabric.backward(model(i == 0 ? at::tensor({INFINITY, 1.f}) : at::tensor({1.f, 1.f})));
      if (optimizer.step()) schedule.step();
      optimizer.zero_grad();
      rates.push_back(optimizer->param_groups()[0].options().get_lr());
    }
    expect(rates == std::vector<double>{1, 1, 0.5}, "LibTorch's StepLR begins with its second call");
    expect(model->w.equal(at::full({2}, 1 - 1 - 1)), "two steps were taken");
  });
  in<weft::Fp32>([](In<weft::Fp32>& fabric) {
    auto [model, optimizer] = fabric.setup(Pair(), weft::SGD{.lr = 1});
    fabric.backward(model(at::tensor({INFINITY, 1.f})));
    expect(optimizer.step() && optimizer.unscale(), "nothing is skipped where nothing is scaled");
  });
}

TEST_CASE("a Fabric's models and optimizers share one scaler; torch's optimizers and weft's alike", "[precision]") {
  in<Scaled>([](In<Scaled>& fabric) {
    auto [first, sgd] = fabric.setup(Pair(), weft::SGD{.lr = 1});
    auto second = fabric.setup(Pair());
    torch::optim::Adam borrowed(second.parameters(), 1.0);
    auto adam = fabric.setup_optimizers(second, borrowed);
    fabric.backward(first(at::tensor({INFINITY, 1.f})) + second(at::tensor({1.f, 1.f})));
    expect(!sgd.step() && adam.step(), "each optimizer for itself");
    expect(first->w.equal(at::ones({2})) && at::allclose(second->w, at::zeros({2}), 0, 1e-5),
           "one is skipped, the other steps");
    expect(fabric.loss_scaler().scale() == 512, "one update");
    sgd.zero_grad();
    adam.zero_grad();
    fabric.backward(first(at::tensor({1.f, 1.f})));
    expect(at::allclose(first->w.grad(), at::full({2}, 512.f)), "and the next loss has the new scale");
    expect(sgd.unscale() && at::allclose(first->w.grad(), at::ones({2})),
           "for code of one's own that looks at gradients");
  });
}

TEST_CASE("what a scaled loss cannot be combined with is refused with what to do", "[precision]") {
  in<Scaled>([](In<Scaled>& fabric) {
    auto [model, optimizer] = fabric.setup(Pair(), weft::SGD{.lr = 1});
    auto const loss = model(fine);
    auto const direct = message_of([&] { loss.backward(); });
    expect(contains(direct, "call fabric.backward(loss)") && !model->w.grad().defined(),
           "a loss that goes backward by itself: " + direct);
    auto const closure =
        message_of([&, &model = model, &optimizer = optimizer] { optimizer.step([&] { return model(fine); }); });
    expect(contains(closure, "step(closure)") && contains(closure, "then step()"), "a closure: " + closure);
    auto const lbfgs =
        message_of([&, &model = model] { fabric.setup_optimizers(model, torch::optim::LBFGS(model.parameters())); });
    expect(contains(lbfgs, "LBFGS") && contains(lbfgs, "loss scaling of Scaled"), "LBFGS: " + lbfgs);
  });
  in<weft::Bf16Mixed>([](In<weft::Bf16Mixed>& fabric) {
    auto model = fabric.setup(Pair());
    auto lbfgs = fabric.setup_optimizers(model, torch::optim::LBFGS(model.parameters()));
    auto const loss = lbfgs.step([&] {
      lbfgs.zero_grad();
      auto const distance = (model(at::ones({2})) - 5).square();
      fabric.backward(distance);
      return distance;
    });
    expect(std::abs(loss.item<double>() - 9) < 1e-3 && std::abs(model->w.sum().item<double>() - 5) < 0.1,
           "without scaling it steps");
  });
}

TEST_CASE("Fp16Mixed trains where plain fp16 gradients would vanish or overflow", "[precision]") {
  on<InFp16<>>(1, [](InFp16<>& fabric) {
    auto [model, optimizer] = fabric.setup(torch::nn::Linear(torch::nn::LinearOptions(4, 1).bias(false)),
                                           weft::SGD{.lr = 1});
    auto const x = at::ones({1, 4}, fabric.device());
    expect(fabric.loss_scaler().scale() == 65536, "the usual first scale");
    fabric.backward(model(x).sum() * std::pow(2.0, -26));  // below fp16's smallest number
    expect(optimizer.step(), "finite");
    expect(model->weight.grad().eq(std::pow(2.0, -26)).all().template item<bool>(), "its gradient arrives");
    optimizer.zero_grad();
    fabric.backward(model(x).sum() * 2);  // 2 * 65536 is above fp16's largest
    expect(!optimizer.step() && fabric.loss_scaler().scale() == 32768, "an overflow in fp16 skips the step");
    optimizer.zero_grad();
    fabric.backward(model(x).sum());
    expect(optimizer.step(), "and the next fits");
  });
}
