// model/engine_stack.ipp -- definitions of model/engine_stack.hpp.
#pragma once

#include <weft/model/engine_stack.hpp>

#include <algorithm>

#include <weft/core/build.hpp>

namespace weft::inline v0::model {

/// Whoever cut last first.
struct Reversed {
  std::vector<std::shared_ptr<Engine>> const& engines;
  auto begin() const { return engines.rbegin(); }
  auto end() const { return engines.rend(); }
};

WEFT_INLINE std::shared_ptr<Engine> stacked(std::shared_ptr<Engine> first, std::shared_ptr<Engine> then) {
  std::vector<std::shared_ptr<Engine>> all;
  for (auto& engine : {std::move(first), std::move(then)})
    if (auto const* const stack = dynamic_cast<EngineStack const*>(engine.get()))
      all.insert(all.end(), stack->engines().begin(), stack->engines().end());
    else if (engine)
      all.push_back(engine);
  return all.size() == 1 ? all.front() : std::make_shared<EngineStack>(std::move(all));
}

WEFT_INLINE at::Tensor EngineStack::take(ParameterRow const& row, at::Tensor values) {
  for (auto const& engine : engines_) values = engine->take(row, std::move(values));
  return values;
}

WEFT_INLINE void EngineStack::pre_forward() {
  for (auto const& engine : Reversed{engines_}) engine->pre_forward();
}

WEFT_INLINE void EngineStack::post_forward(std::vector<at::Tensor*> const& outputs) {
  for (auto const& engine : engines_) engine->post_forward(outputs);
}

WEFT_INLINE void EngineStack::abandon_forward() noexcept {
  for (auto const& engine : engines_) engine->abandon_forward();
}

WEFT_INLINE void EngineStack::abandon_backward() noexcept {
  for (auto const& engine : Reversed{engines_}) engine->abandon_backward();
}

WEFT_INLINE BackwardSync EngineStack::set_backward_sync(BackwardSync sync) {
  for (auto const& engine : engines_) engine->set_backward_sync(sync);
  return std::exchange(sync_, sync);  // not every engine knows one
}

WEFT_INLINE bool EngineStack::guards_units() const {
  return std::any_of(engines_.begin(), engines_.end(), [](auto const& engine) { return engine->guards_units(); });
}

WEFT_INLINE bool EngineStack::hears_steps() const {
  return std::any_of(engines_.begin(), engines_.end(), [](auto const& engine) { return engine->hears_steps(); });
}

WEFT_INLINE void EngineStack::before_step(torch::optim::Optimizer& optimizer) {
  for (auto const& engine : engines_) engine->before_step(optimizer);
}

WEFT_INLINE void EngineStack::after_step(torch::optim::Optimizer& optimizer) {
  for (auto const& engine : Reversed{engines_}) engine->after_step(optimizer);
}

WEFT_INLINE void EngineStack::unshard_all() {
  std::size_t done = 0;
  try {
    for (auto const& engine : Reversed{engines_}) engine->unshard_all(), ++done;
  } catch (...) {
    for (std::size_t i = engines_.size() - done; i < engines_.size(); ++i) engines_[i]->reshard_all(false);
    throw;
  }
}

WEFT_INLINE void EngineStack::reshard_all(bool keep_changes) {
  for (auto const& engine : engines_) engine->reshard_all(keep_changes);
}

WEFT_INLINE void EngineStack::visit_unsharded(Rows const& rows, Visit what,
                                              c10::function_ref<void(Rows const&)> visit) {
  visit_from(engines_.size(), rows, what, visit);
}

WEFT_INLINE void EngineStack::visit_from(std::size_t last, Rows const& rows, Visit what,
                                         c10::function_ref<void(Rows const&)> visit) {
  if (last == 0) return visit(rows);
  engines_[last - 1]->visit_unsharded(rows, what, [&](Rows const& some) { visit_from(last - 1, some, what, visit); });
}

WEFT_INLINE void EngineStack::show_shapes(bool unsharded) {
  // Back in the other order: each shows what lies within the one that is shown last.
  if (unsharded)
    for (auto const& engine : Reversed{engines_}) engine->show_shapes(true);
  else
    for (auto const& engine : engines_) engine->show_shapes(false);
}

WEFT_INLINE bool EngineStack::scale_gradient(at::Tensor const& parameter, at::Tensor const& factor) {
  return std::any_of(engines_.begin(), engines_.end(),
                     [&](auto const& engine) { return engine->scale_gradient(parameter, factor); });
}

WEFT_INLINE void EngineStack::close() {
  for (auto const& engine : engines_) engine->close();
}

}  // namespace weft::model
