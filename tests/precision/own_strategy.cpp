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

}  // namespace

template <>
struct weft::Mechanism<Alone> {
  template <class Derived>
  class Mixin {
   protected:
    friend Derived;
    std::shared_ptr<model::Engine> make_engine(torch::nn::Module&, model::ParameterTable const&) {
      return std::make_shared<model::Engine>();
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
