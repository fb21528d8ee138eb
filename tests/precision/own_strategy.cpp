#include <weft/strategy/mechanism.hpp>

#include "precisions.hpp"

using namespace test;

namespace {

/// Ranks start alike and keep gradients of their own.
struct AlonePlan {
  bool operator==(AlonePlan const&) const = default;
};
struct Alone {
  using category = weft::category::strategy;
  static constexpr std::string_view name = "Alone";
  static constexpr AlonePlan config{};
};

/// An engine that counts what it hears of steps.
struct Counting final : weft::model::Engine {
  bool hears_steps() const override { return true; }
  void before_step(torch::optim::Optimizer& optimizer) override {
    seen.push_back(optimizer.param_groups()[0].params()[0].grad()[0].item<double>());
  }
  void after_step(torch::optim::Optimizer&) override { ++taken; }
  std::vector<double> seen;  // gradients
  int taken = 0;
};

}  // namespace

template <>
struct weft::Mechanism<Alone> : weft::MechanismDefaults {
  template <class Derived>
  class Mixin {
   protected:
    friend Derived;
    std::shared_ptr<model::Engine> make_engine(torch::nn::Module&, model::ParameterTable&, MechanismContext const&) {
      return std::make_shared<Counting>();
    }
  };
};

TEST_CASE("under a strategy of one's own, whose ranks have gradients of their own, all ranks leave a step out",
          "[precision]") {
  using Run = In<Scaled, Alone>;
  on<Run>(3, [](Run& fabric) {
    auto [model, optimizer] = fabric.setup(Pair(), weft::SGD{.lr = 1.0});
    fabric.backward(model(at::full({2}, fabric.global_rank() == 1 ? INFINITY : 1.0)));
    expect(!optimizer.step(), "left out on each rank, whichever overflowed");
    optimizer.zero_grad();
    fabric.backward(model(at::full({2}, fabric.global_rank() + 1.0)));
    expect(optimizer.step() && fabric.loss_scaler().state().scale == 512,
           "the scale is one, and the next step is taken");
    expect(model->w.equal(at::full({2}, -static_cast<double>(fabric.global_rank()))), "by each rank's own gradient");
  });
}

TEST_CASE("an engine hears of the steps that are taken, with gradients that have no scale", "[precision]") {
  using Run = In<Scaled, Alone>;
  on<Run>(1, [](Run& fabric) {
    auto [model, optimizer] = fabric.setup(Pair(), weft::SGD{.lr = 1.0});
    auto const& engine = dynamic_cast<Counting const&>(*model.state()->engine);
    fabric.backward(model(at::full({2}, 3.0)));
    optimizer.step();
    expect(engine.seen == std::vector<double>{3.0} && engine.taken == 1, "a step");
    optimizer.zero_grad();
    fabric.backward(model(at::full({2}, INFINITY)));
    optimizer.step();
    expect(engine.seen.size() == 1 && engine.taken == 1, "one that was left out");
  });
}
