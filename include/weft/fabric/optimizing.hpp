// fabric/optimizing.hpp -- optimizers of a Fabric's models, and the clipping of their gradients.
// In: models that are set up, and descriptions or optimizers. Out: optimizers that step under the strategy and the
// precision.
#pragma once

#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <weft/core/diagnose.hpp>
#include <weft/fabric/callbacks.hpp>
#include <weft/model/clip.hpp>
#include <weft/model/model.hpp>
#include <weft/optim/clip.hpp>
#include <weft/optim/description.hpp>
#include <weft/optim/optimizer.hpp>

namespace weft::inline v0::fabric {

/// What descriptions are shown. Of several models their number comes first, since names of different models may be
/// alike.
std::vector<optim::NamedParameter> trainable_parameters(std::vector<model::ModelState*> const& models);

/// .when = [](auto name, auto& parameter) { return parameter.dim() < 2; } means the whole.
struct UnshardedShapes {
  explicit UnshardedShapes(std::vector<model::ModelState*> const& shown) : models(shown) {
    for (auto const* const model : models) model->engine->show_shapes(true);
  }
  ~UnshardedShapes() {
    for (auto const* const model : models) model->engine->show_shapes(false);
  }
  std::vector<model::ModelState*> const& models;
};

void require_parameters_of(std::vector<model::ModelState*> const& models, torch::optim::Optimizer const& optimizer,
                           char const* call);

/// LBFGS steps by dot products over all of its parameters, which a rank that has parts of them would take over its
/// parts, and runs backward as it steps, past the scale of the loss. `scaling`: the precision that scales losses, if
/// one does.
void refuse_lbfgs(std::vector<model::ModelState*> const& models, torch::optim::Optimizer const& optimizer,
                  std::string_view scaling);

/// The part of Fabric that sets optimizers up and clips.
template <class Derived>
class Optimizing {
 public:
  /// One optimizer, or a tuple of several.
  template <class M, class... Optimizers>
  auto setup_optimizers(Model<M> const& model, Optimizers&&... optimizers) {
    return make_optimizers(states_of(model), std::forward<Optimizers>(optimizers)...);
  }
  /// Over the parameters of several models, which a description sees as "0.name", "1.name", ...:
  ///
  ///   auto optimizer = fabric.setup_optimizers(std::tie(encoder, decoder), weft::AdamW{.lr = 3e-4});
  template <class... Models, class... Optimizers>
    requires(is_model_v<std::remove_cvref_t<Models>> && ...)
  auto setup_optimizers(std::tuple<Models...> const& models, Optimizers&&... optimizers) {
    static_assert(sizeof...(Models) > 0,
                  "weft: setup_optimizers(std::tie(models...), optimizers...): name at least one model");
    return make_optimizers(states_of(models), std::forward<Optimizers>(optimizers)...);
  }

  /// Clips the gradients of the optimizer's parameters; returns the norm before clipping, equal on all ranks. Where
  /// losses are scaled, gradients have no scale from here on; if they overflowed, the norm says so and is no error:
  /// step() leaves parameters alone then.
  template <class M, class O>
  at::Tensor clip_gradients(Model<M> const& model, Optimizer<O> const& optimizer, ClipNorm clip) {
    return clip_models(states_of(model), optimizer, clip);
  }
  template <class M, class O>
  void clip_gradients(Model<M> const& model, Optimizer<O> const& optimizer, ClipValue clip) {
    clip_models(states_of(model), optimizer, clip);
  }
  /// Of an optimizer over several models: clip_gradients(std::tie(encoder, decoder), optimizer, ClipNorm{1.0}). The
  /// norm is one.
  template <class... Models, class O, class Clip>
    requires(is_model_v<std::remove_cvref_t<Models>> && ...)
  auto clip_gradients(std::tuple<Models...> const& models, Optimizer<O> const& optimizer, Clip clip) {
    return clip_models(states_of(models), optimizer, clip);
  }
  template <class M, class O, class Clip>
    requires(!is_model_v<M> || !is_optimizer_v<O>)
  void clip_gradients(M const&, O const&, Clip const&) {
    static_assert(core::always_false_v<M>,
                  "weft: clip_gradients(model, optimizer, clip): pass what setup returned, a model (or std::tie of "
                  "several) and its optimizer, and weft::ClipNorm{...} or weft::ClipValue{...}");
  }

 private:
  friend Derived;
  Optimizing() = default;
  Derived& fabric() { return static_cast<Derived&>(*this); }

  /// The models that an optimizer is over: one, or several.
  using States = std::vector<model::ModelState*>;
  template <class M>
  static States states_of(Model<M> const& model) {
    return {model.state().get()};
  }
  template <class... Models>
  static States states_of(std::tuple<Models...> const& models) {
    return std::apply([](auto const&... each) { return States{each.state().get()...}; }, models);
  }

  template <class... Optimizers>
  auto make_optimizers(States const& models, Optimizers&&... optimizers) {
    static_assert(sizeof...(Optimizers) > 0,
                  "weft: setup_optimizers(model, optimizers...): pass at least one optimizer");
    if constexpr (sizeof...(Optimizers) == 1)
      return setup_optimizer(models, std::forward<Optimizers>(optimizers)...);
    else
      return std::tuple{setup_optimizer(models, std::forward<Optimizers>(optimizers))...};
  }

  /// The precision that scales losses; empty: none does.
  static constexpr std::string_view loss_scaling() {
    using Composed = typename Derived::composition;
    if constexpr (Composed::valid)
      if (Composed::precision::config.loss_scaling) return Composed::precision::name;
    return {};
  }

  template <class O>
  auto setup_optimizer(States const& models, O&& optimizer) {
    using Plain = std::remove_cvref_t<O>;
    optim::assert_optimizer<Plain>();
    if constexpr (OptimizerDescription<Plain>) {
      UnshardedShapes const whole(models);
      auto made = optimizer.make(trainable_parameters(models));
      refuse_lbfgs(models, *made, loss_scaling());
      auto rules = fabric().step_rules(models, *made);
      return announcing(Optimizer(std::move(made), std::move(rules)));
    } else if constexpr (std::is_base_of_v<torch::optim::Optimizer, Plain>) {
      require_parameters_of(models, optimizer, "setup");
      refuse_lbfgs(models, optimizer, loss_scaling());
      if constexpr (std::is_lvalue_reference_v<O>) {
        return announcing(Optimizer<Plain>::borrow(optimizer, fabric().step_rules(models, optimizer)));
      } else {
        auto owned = std::make_unique<Plain>(std::move(optimizer));
        auto rules = fabric().step_rules(models, *owned);
        return announcing(Optimizer<Plain>(std::move(owned), std::move(rules)));
      }
    } else {
      return std::monostate();  // refused above; not void, which would be a second error
    }
  }

  template <class O>
  at::Tensor clip_models(States const& models, Optimizer<O> const& optimizer, ClipNorm clip) {
    require_parameters_of(models, *optimizer, "clip_gradients");
    auto const phase = fabric().phase("clip");
    if (!optimizer.unscale()) clip.error_if_nonfinite = false;
    std::vector<model::Clipped> clipped;
    for (auto const* const model : models) clipped.push_back({&model->table, model->session.get()});
    return model::clip(clipped, optimizer.parameters(), clip);
  }
  template <class O>
  void clip_models(States const& models, Optimizer<O> const& optimizer, ClipValue const& clip) {
    require_parameters_of(models, *optimizer, "clip_gradients");
    auto const phase = fabric().phase("clip");
    optimizer.unscale();
    optim::clip(optimizer.parameters(), clip);
  }

  template <class O>
  O announcing(O optimizer) {
    optimizer.after_step([listeners = fabric().listeners_](torch::optim::Optimizer& stepped) {
      listeners->notify(&Listener::after_step, AfterOptimizerStep{stepped});
    });
    return optimizer;
  }
};

}  // namespace weft::fabric

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/fabric/optimizing.ipp>
#endif
