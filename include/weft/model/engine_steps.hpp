// model/engine_steps.hpp -- an engine hears of the steps of an optimizer.
// In: an engine that asks for it. Out: a step rule that tells it.
#pragma once

#include <memory>
#include <utility>

#include <weft/model/engine.hpp>
#include <weft/optim/optimizer.hpp>

namespace weft::inline v0::model {

/// The optimizer may outlive the model, and with it the engine.
class EngineSteps final : public optim::StepRule {
 public:
  explicit EngineSteps(std::weak_ptr<Engine> engine) : engine_(std::move(engine)) {}
  bool begin_step(torch::optim::Optimizer& optimizer, bool) override {
    if (auto const engine = engine_.lock()) engine->before_step(optimizer);
    return true;
  }
  void end_step(torch::optim::Optimizer& optimizer) override {
    if (auto const engine = engine_.lock()) engine->after_step(optimizer);
  }

 private:
  std::weak_ptr<Engine> engine_;
};

}  // namespace weft::model
