// NEW-21: a strategy of one's own that averages gradients as the guide says.
#include "shard/models.hpp"

#include <weft/unit/gradient_hook.hpp>

namespace own_gradients {  // tests are compiled several in one file
namespace {

using namespace test;

struct AverageGradients {
  using category = weft::category::strategy;
  static constexpr std::string_view name = "AverageGradients";
  static constexpr weft::NoConfig config{};
};

class AverageGradientsEngine final : public weft::model::Engine {
 public:
  AverageGradientsEngine(weft::model::ParameterTable const& table, std::shared_ptr<weft::comm::Communicator> ranks)
      : ranks_(std::move(ranks)) {
    for (auto const& row : table.rows())
      if (row.trainable)
        hooks_.emplace_back(row.tensor, [this, parameter = row.tensor] {
          if (sync_ == weft::model::BackwardSync::reduce) ranks_->all_reduce(parameter.grad(), weft::ReduceOp::average);
        });
  }
  weft::model::BackwardSync set_backward_sync(weft::model::BackwardSync sync) override {
    return std::exchange(sync_, sync);
  }
  void close() override { hooks_.clear(); }

 private:
  std::shared_ptr<weft::comm::Communicator> ranks_;
  std::vector<weft::unit::GradientHook> hooks_;
  weft::model::BackwardSync sync_ = weft::model::BackwardSync::reduce;
};

}  // namespace
}  // namespace own_gradients

template <>
struct weft::Mechanism<own_gradients::AverageGradients> : weft::MechanismDefaults {
  static constexpr bool equal_gradients = true;
  template <class Derived>
  class Mixin {
   protected:
    friend Derived;
    std::shared_ptr<model::Engine> make_engine(torch::nn::Module&, model::ParameterTable& table,
                                               MechanismContext const& context) {
      return std::make_shared<own_gradients::AverageGradientsEngine>(table, context.ranks());
    }
  };
};

namespace own_gradients {

TEST_CASE("NEW-21: hooks of a strategy of one's own live as long as its engine: it equals one process",
          "[strategy][known]") {
  auto const stack = [] { return Stack(); };
  Training const accumulating{.accumulate = 2};
  auto const reference = train<weft::SingleDevice>(1, stack, weft::AdamW{.lr = 1e-2}, accumulating);
  for (int world : {1, 2, 3, 4}) {
    INFO("world " << world);
    check_equal(train<AverageGradients>(world, stack, weft::AdamW{.lr = 1e-2}, accumulating), reference);
  }
}

TEST_CASE("a gradient hook outlives neither its owner nor its parameter's graph", "[unit]") {
  auto const p = at::ones({2}).requires_grad_();
  int arrived = 0;
  auto const late = (p * 2).sum();
  {
    weft::unit::GradientHook const hook(p, [&] { ++arrived; });
    (p * 3).sum().backward();
    (p * 3 + p).sum().backward();
    CHECK(arrived == 2);  // once a pass
    weft::unit::GradientHook off(p, [&] { arrived += 100; });
    off.disconnect();
    (p * 3).sum().backward();
    CHECK(arrived == 3);
  }
  late.backward();
  CHECK(arrived == 3);
}

}  // namespace own_gradients
