// fabric/numerics.hpp -- the numbers that a Fabric works in.
// In: a Fabric and its precision. Out: scopes of autocast and of new tensors, the loss scaler; rules and backward for
// the rest of the facade.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <weft/comm/communicator.hpp>
#include <weft/init/deferred_init.hpp>
#include <weft/model/engine_steps.hpp>
#include <weft/model/model.hpp>
#include <weft/model/precision.hpp>
#include <weft/model/reduced_gradients.hpp>
#include <weft/optim/optimizer.hpp>
#include <weft/precision/autocast.hpp>
#include <weft/precision/loss_scaler.hpp>
#include <weft/precision/rules.hpp>

namespace weft::inline v0::fabric {

template <class Derived>
class Optimizing;

/// The part of Fabric that knows its precision.
template <class Derived>
class Numerics {
 public:
  /// The scope that forward runs in, for code outside of models: under Bf16Mixed and Fp16Mixed operations pick their
  /// dtype, on the fabric's device. With `enabled` false, not even inside of another such scope.
  ///   auto const scope = fabric.autocast();
  [[nodiscard]] precision::Autocast autocast(bool enabled = true) {
    return rules().scope(fabric().device().type(), enabled);
  }

  /// While it lives, new tensors for which nothing is said are made on the fabric's device, those of floating point in
  /// the dtype of its parameters.
  ///   auto const scope = fabric.init_tensor();
  [[nodiscard]] DeferredInit init_tensor() {
    std::optional<at::ScalarType> dtype;  // of fp32, LibTorch's own default
    if (auto const stored = rules().config().stored; stored != Number::fp32) dtype = precision::dtype_of(stored);
    return DeferredInit({.deferred = false, .device = fabric().device(), .dtype = dtype});
  }

  /// What multiplies the loss in backward. Its state belongs into checkpoints: fabric.loss_scaler().state(), and load()
  /// of it.
  precision::LossScaler& loss_scaler() {
    using Composed = typename Derived::composition;
    static_assert(Composed::precision::config.loss_scaling || !Composed::valid,
                  "weft: loss_scaler: this Fabric's precision scales no losses: write Fp16Mixed, or .loss_scaling = "
                  "true in the config of yours");
    return *scaler();
  }

 private:
  friend Derived;
  friend Optimizing<Derived>;
  Numerics() = default;
  Derived& fabric() { return static_cast<Derived&>(*this); }

  precision::Rules const& rules() {
    using Precision = typename Derived::composition::precision;
    if (!rules_)
      rules_ = std::make_shared<precision::rules_of_t<Precision> const>(Derived::composition::precision_config);
    return *rules_;
  }
  /// Null: losses are not scaled.
  std::shared_ptr<precision::LossScaler> const& scaler() {
    if (!scaler_ && rules().config().loss_scaling)
      scaler_ = std::make_shared<precision::LossScaler>(rules().config().scaling, fabric().device());
    return scaler_;
  }
  /// A precision that has nothing to do costs nothing.
  static constexpr bool is_idle() {
    using Precision = typename Derived::composition::precision;
    return Precision::config == PrecisionConfig() && std::is_same_v<precision::rules_of_t<Precision>, precision::Rules>;
  }

  void govern(model::ModelState& state) {
    if (is_idle()) return;
    static_cast<void>(rules());
    state.rules = rules_;
    if (scaler()) state.scaled = std::make_shared<model::ScaledBackward>(scaler());
  }
  void run_backward(at::Tensor const& loss) {
    if (scaler())
      scaler()->backward(loss);
    else
      loss.backward();
  }
  /// `models`: those that the optimizer is over.
  optim::StepRules step_rules(std::vector<model::ModelState*> const& models, torch::optim::Optimizer const& optimizer) {
    optim::StepRules rules;
    if (fabric().world_size() > 1) rules.push_back(std::make_shared<model::ReducedGradients>(models, optimizer));
    if (!is_idle()) rules.push_back(precision_step(models, optimizer));
    for (auto const* const model : models)
      if (model->engine->hears_steps()) rules.push_back(std::make_shared<model::EngineSteps>(model->engine));
    return rules;
  }
  std::shared_ptr<optim::StepRule> precision_step(std::vector<model::ModelState*> const& models,
                                                  torch::optim::Optimizer const& optimizer) {
    std::shared_ptr<precision::LossScaler::Gradients> gradients;
    if (scaler()) {
      std::vector<precision::LossScaler::Agree> consistency_checks;
      std::vector<std::weak_ptr<model::Engine>> engines;
      for (auto const* const model : models) {
        engines.push_back(model->engine);
        if (auto agree = model::agreement_over(model->session, model->table, optim::parameters_of(optimizer)))
          consistency_checks.push_back(std::move(agree));
      }
      // Ranks whose gradients may differ overflow each by itself.
      if constexpr (!Derived::mechanism::equal_gradients)
        if (auto const& world = fabric().session().world)
          consistency_checks.push_back([world = std::weak_ptr(world)](at::Tensor const& found) {
            if (auto const ranks = world.lock()) ranks->all_reduce(found, ReduceOp::max);
          });
      precision::LossScaler::Agree agree;
      if (!consistency_checks.empty())
        agree = [consistency_checks = std::move(consistency_checks)](at::Tensor const& found) {
          for (auto const& of_model : consistency_checks) of_model(found);
        };
      gradients = scaler()->watch([&optimizer] { return optim::parameters_of(optimizer); }, std::move(agree),
                                  model::scale_by(std::move(engines)));
    }
    return std::make_shared<model::PrecisionStep>(std::move(gradients));
  }

  std::shared_ptr<precision::Rules const> rules_;
  std::shared_ptr<precision::LossScaler> scaler_;
};

}  // namespace weft::fabric
