// fabric/joining.hpp -- training on ranks that have unequal numbers of batches.
// In: a Fabric, models, optimizers and a loop. Out: the loop run to its own end on each rank, and one model on all.
#pragma once

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include <weft/data_parallel/join.hpp>
#include <weft/model/engine.hpp>
#include <weft/strategy/mechanism.hpp>
#include <weft/strategy/strategy.hpp>

namespace weft::inline v0::fabric {

/// The part of Fabric that joins ranks at the end of their batches.
template <class Derived>
class Joining {
 public:
  /// Runs `loop` on each rank for as many steps as it has batches. A rank that is through answers the others until all
  /// are, and then all have the model and the optimizer of those that went on longest. Collective; ranks take the same
  /// steps while they have a batch, and no collective of their own in them.
  ///
  ///   fabric.join(model, optimizer, [&](auto& model, auto& optimizer) { for (auto& batch : loader) { ... } });
  ///
  /// Several models or optimizers: std::tie(generator, critic); the loop takes them all, one after another, or nothing.
  /// Strategies of one process just run it.
  template <class Models, class Optimizers, class Loop>
  void join(Models const& models, Optimizers const& optimizers, Loop&& loop) {
    join(models, optimizers, JoinOptions{}, loop);
  }
  template <class Models, class Optimizers, class Loop>
  void join(Models const& models, Optimizers const& optimizers, JoinOptions options, Loop&& loop) {
    using Strategy = typename Derived::composition::strategy;
    constexpr bool alone = !topology_of<Strategy>().processes, joins = Derived::mechanism::joins;
    static_assert(alone || joins,
                  "weft: join: ranks of this strategy need each other inside of forward, for every unit, so that none "
                  "can be through before the others: give all ranks equally many batches "
                  "(Uneven::pad in the loader, the default), or write DDP<>");
    auto& session = static_cast<Derived&>(*this).session();
    auto handles = std::tuple_cat(several(models), several(optimizers));
    auto const run = [&] {
      if constexpr (std::is_invocable_v<Loop&>)
        loop();
      else
        std::apply(loop, handles);
    };
    if constexpr (alone) {
      run();
    } else if constexpr (joins) {
      std::vector<std::shared_ptr<data_parallel::JoinableEngine>> engines;
      std::vector<torch::optim::Optimizer*> steppers;
      std::apply([&](auto const&... model) { (engines.push_back(joinable(model.state()->engine)), ...); },
                 several(models));
      std::apply(
          [&](auto const&... optimizer) {
            (steppers.push_back(&static_cast<torch::optim::Optimizer&>(*optimizer)), ...);
          },
          several(optimizers));
      [[maybe_unused]] auto const source = data_parallel::run_joined(session, options, engines, steppers, run);
      if constexpr (Derived::composition::precision::config.loss_scaling)
        if (source) {  // the scale has moved with the steps
          auto& scaler = static_cast<Derived&>(*this).loss_scaler();
          auto const state = scaler.state();
          auto const [scale, steps] = static_cast<Derived&>(*this).broadcast(
              std::pair(state.scale, state.steps_since_change), *source);
          scaler.load({scale, steps});
        }
    }
  }

 private:
  friend Derived;
  Joining() = default;

  static std::shared_ptr<data_parallel::JoinableEngine> joinable(std::shared_ptr<model::Engine> const& engine) {
    auto joins = std::dynamic_pointer_cast<data_parallel::JoinableEngine>(engine);
    if (!joins)
      fail<ConfigurationError>(
          "weft: join: the mechanism of this strategy says that it joins, but its engine is no "
          "data_parallel::JoinableEngine; derive it from that, or leave `joins` out");
    return joins;
  }
  template <class T>
  static std::tuple<T> several(T const& one) {
    return {one};
  }
  template <class... T>
  static std::tuple<std::remove_cvref_t<T>...> several(std::tuple<T...> const& all) {
    return all;
  }
};

}  // namespace weft::fabric
