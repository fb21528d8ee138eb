// fabric.hpp -- the facade: one training loop, distributed as a type says.
// In: policies. Out: setup, backward and guards, and the parts in fabric/; the only file that sees strategies and
// mechanisms.
#pragma once

#include <concepts>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>
#include <weft/fabric/callbacks.hpp>
#include <weft/fabric/collectives.hpp>
#include <weft/fabric/data_loading.hpp>
#include <weft/fabric/joining.hpp>
#include <weft/fabric/launching.hpp>
#include <weft/fabric/logging.hpp>
#include <weft/fabric/numerics.hpp>
#include <weft/fabric/optimizing.hpp>
#include <weft/fabric/rank_zero_first.hpp>
#include <weft/fabric/seeds.hpp>
#include <weft/fabric/weights.hpp>
#include <weft/fwd.hpp>
#include <weft/init/deferred_init.hpp>
#include <weft/launch/launch_options.hpp>
#include <weft/launch/sessions.hpp>
#include <weft/model/activation_rules.hpp>
#include <weft/model/model.hpp>
#include <weft/model/setup.hpp>
#include <weft/model/single_device.hpp>
#include <weft/strategy/composition.hpp>
#include <weft/strategy/mechanism.hpp>

namespace weft::inline v0 {
namespace fabric {

class Probe;
template <class Strategy>
concept HasMixin = requires(typename Mechanism<Strategy>::template Mixin<Probe>* mixin) { mixin; };
template <class Strategy>
inline constexpr bool is_declared_v = std::is_base_of_v<MechanismDefaults, Mechanism<Strategy>>;

/// What a Fabric stands on: its strategy if that can be carried out, else SingleDevice, so that one mistake is one
/// error.
template <class... Policies>
struct Base {
  using composition = Composition<Policies...>;
  static consteval bool usable() {
    if constexpr (composition::valid)
      return HasMixin<typename composition::strategy> && is_declared_v<typename composition::strategy> &&
             precision::HasRules<typename composition::precision>;
    return false;
  }
  using mechanism = Mechanism<std::conditional_t<usable(), typename composition::strategy, SingleDevice>>;
  template <class Derived>
  using mixin = typename mechanism::template Mixin<Derived>;
};

}  // namespace fabric

/// A training loop's view of the machine. What may be combined: strategy/composition.hpp; policies stand in any order.
///
///   using Run = weft::Fabric<weft::DDP<>>;
///   auto outcome = Run::launch({.devices = 2}, [](Run& fabric) { ... });
///   return outcome.exit_code();
///
/// One Fabric belongs to the thread that drives it.
template <class... Policies>
class Fabric : public fabric::Base<Policies...>::template mixin<Fabric<Policies...>>,
               public fabric::Announcements<Fabric<Policies...>>,
               public fabric::Collectives<Fabric<Policies...>>,
               public fabric::DataLoading<Fabric<Policies...>>,
               public fabric::Joining<Fabric<Policies...>>,
               public fabric::Launching<Fabric<Policies...>>,
               public fabric::Logging<Fabric<Policies...>>,
               public fabric::Numerics<Fabric<Policies...>>,
               public fabric::Optimizing<Fabric<Policies...>>,
               public fabric::Seeds<Fabric<Policies...>>,
               public fabric::RankZeroFirst<Fabric<Policies...>>,
               public fabric::Weights<Fabric<Policies...>> {
  using Composed = Composition<Policies...>;
  static_assert(Composed::check());
  static consteval bool check_mechanisms() {
    if constexpr (Composed::valid) return assert_mechanism<typename Composed::strategy>();
    return true;
  }
  static_assert(check_mechanisms());
  static_assert(precision::HasRules<typename Composed::precision>,
                "weft: Mechanism<P> of this precision has no Rules: give it a struct Rules : weft::precision::Rules "
                "that is made from a PrecisionConfig "
                "(using weft::precision::Rules::Rules), or leave the Mechanism out, and the config is carried out");
  static_assert(fabric::HasMixin<typename Composed::strategy> || !has_mechanism_v<typename Composed::strategy>,
                "weft: Mechanism<S> of this strategy has no Mixin: give it a template <class Derived> class Mixin with "
                "std::shared_ptr<model::Engine> make_engine(torch::nn::Module&, model::ParameterTable&, "
                "MechanismContext const&)");
  static_assert(
      fabric::has_backend_v<typename Composed::backend> || uses_nccl_v<typename Composed::backend> || !Composed::valid,
      "weft: nothing here creates this backend: for Simulated include weft/launch/simulated.hpp, for one of your own "
      "specialize comm::BackendFactory (comm/backend.hpp)");
  static_assert(
      fabric::is_declared_v<typename Composed::strategy> || !fabric::HasMixin<typename Composed::strategy>,
      "weft: Mechanism<S> of this strategy says nothing about itself: derive it from weft::MechanismDefaults, "
      "and declare in it what differs from the defaults (strategy/mechanism.hpp)");
  using Carried = typename fabric::Base<Policies...>::mechanism;
  using Mixin = typename fabric::Base<Policies...>::template mixin<Fabric>;
  using Backend = typename Composed::backend;
  static constexpr bool needs_nccl = topology_of<typename Composed::strategy>().processes &&
                                     talks_by_nccl_v<Backend, typename Composed::device>;
  static_assert(!needs_nccl || comm::BackendPolicy<Nccl> || !Composed::valid,
                "weft: several processes on CUDA talk by NCCL, and this program is built without it: build where CUDA "
                "and NCCL are found, with -DUSE_C10D_NCCL=1 "
                "(weft's Meson dependency sets it there), or write On<Cpu>, with the backend Gloo");
  static constexpr auto const& machine = launch::machine_v<typename Composed::device, fabric::connect_of<Backend>()>;

 public:
  using composition = Composed;
  /// What carries the strategy out, with what it says about itself.
  using mechanism = Carried;
  static constexpr bool simulates = simulated_world_v<Backend> != 0;
  static constexpr bool uses_processes = topology_of<typename Composed::strategy>().processes && !simulates;
  using Launcher = typename Composed::launcher;
  static constexpr bool joins_environment = launch::joins_ranks_v<Launcher> && !simulates;
  static constexpr bool reruns_program = std::is_same_v<Launcher, Popen> && uses_processes;

  // ---- launching -------------------------------------------------------------------------------------------------

  /// The straight-line form: every process runs the whole program. `launch()` comes before anything else. Under Popen
  /// the process that was started first only watches: it leaves launch() by exit, with 0 if all ranks ended well.
  explicit Fabric(LaunchOptions options = {}) : fabric::Launching<Fabric>(std::move(options)) {
    static_assert(!uses_processes || joins_environment || reruns_program,
                  "weft: Fabric<...> fabric(options); fabric.launch() needs ranks that already run the whole program: "
                  "write the launcher "
                  "Environment or Popen, or Fabric<...>::launch(options, function)");
  }
  ~Fabric() { this->release(); }
  Fabric(Fabric const&) = delete;
  Fabric& operator=(Fabric const&) = delete;

  // ---- setting up ------------------------------------------------------------------------------------------------

  /// Which of the policies ActivationCheckpointing<...> and OffloadActivations<...> hold in models that are set up from
  /// now on.
  ActivationConfig& activation_config() {
    static_assert(Composed::memory::size != 0 || !Composed::valid,
                  "weft: activation_config: this Fabric has no policy of activations: write Fabric<..., "
                  "ActivationCheckpointing<Block>>");
    return activation_config_;
  }
  /// Where the activations of OffloadActivations<...> wait, in models that are set up from now on: pinned host memory
  /// unless said here.
  ///   fabric.offload_activations_to(std::make_shared<weft::activation::FilesBelow>("/scratch"));  //
  ///   weft/activation/file_store.hpp
  void offload_activations_to(std::shared_ptr<activation::ActivationStore> store) {
    static_assert(Composed::offloads_activations || !Composed::valid,
                  "weft: offload_activations_to: this Fabric keeps its activations where they are: write Fabric<..., "
                  "OffloadActivations<Block>>");
    if (!store)
      fail<ConfigurationError>(
          "weft: offload_activations_to: the store is null; pass std::make_shared<weft::activation::HostMemory>(), "
          "FilesBelow(directory) or one of your own");
    activation_store_ = std::move(store);
  }

  /// Moves the module to the device, prepares it for the strategy and wraps it; with optimizers, [model, optimizer,
  /// ...]. Collective. An optimizer is a description (weft::AdamW{.lr = 3e-4}) or a torch::optim optimizer of the
  /// model's parameters: moved in, or borrowed if it has a name. Callbacks hear of it: AfterSetup.
  template <class M, class... Optimizers>
  auto setup(M module, Optimizers&&... optimizers) {
    auto model = setup_module(std::move(module));
    if constexpr (!is_model_v<decltype(model)>) {
      return model;  // refused where it was set up
    } else if constexpr (sizeof...(Optimizers) == 0) {
      announce(model);
      return model;
    } else {
      // Braces: optimizers are made from left to right on every rank.
      std::tuple made{model, this->setup_optimizer(this->states_of(model), std::forward<Optimizers>(optimizers))...};
      announce(model);
      return made;
    }
  }

  /// Builds a module without memory: setup gives it its values, which are those of an eager program, one parameter
  /// after another.
  ///
  ///   auto [model, optimizer] = fabric.setup(fabric.init_module<Transformer>(sizes), weft::AdamW{.lr = 1e-4});
  ///
  /// An Init before the arguments says otherwise: Init{.empty = true} for weights that are loaded, Init{.deferred =
  /// false} for memory at once. Tensors for which the module says no device get the fabric's; parameters get the
  /// precision's dtype when they get their values, in setup.
  template <class M, class... Arguments>
    requires(!std::is_same_v<Init, std::remove_cvref_t<Arguments>> && ...)
  auto init_module(Arguments&&... arguments) {
    return init_module<M>(Init{}, std::forward<Arguments>(arguments)...);
  }
  template <class M, class... Arguments>
  auto init_module(Init how, Arguments&&... arguments) {
    constexpr bool is_module = !std::is_void_v<model::impl_of_t<M>>;
    static_assert(is_module,
                  "weft: init_module<M>: M is a module holder (torch::nn::Linear, WEFT_MODULE's type) or a "
                  "std::shared_ptr to a module");
    if (!how.device && this->device() != at::kCPU) how.device = this->device();
    DeferredInit const scope(how);
    if constexpr (is_module) {
      M module(std::make_shared<model::impl_of_t<M>>(std::forward<Arguments>(arguments)...));
      return Unmaterialized<M>(std::move(module), scope.report());
    } else {
      return at::Tensor();  // refused above; not void, which would be a second error
    }
  }

  template <class M>
  auto setup_module(Unmaterialized<M> module) {
    auto report = module.report();
    return set_up(std::move(module).take(), std::move(report));
  }
  template <class M>
  auto setup_module(M module) {
    return set_up(std::move(module), {});
  }

 private:
  template <class M>
  auto set_up(M module, InitReport report) {
    static_assert(!is_model_v<M>, "weft: setup: this model is set up already; pass the module itself, once");
    static_assert(
        is_model_v<M> || !std::is_void_v<model::impl_of_t<M>>,
        "weft: setup: pass a module holder (torch::nn::Linear, WEFT_MODULE's type) or a std::shared_ptr to a module");
    constexpr bool makes_engine = requires(Fabric& self, torch::nn::Module& root, model::ParameterTable& table,
                                           MechanismContext const& context) {
      { self.Mixin::make_engine(root, table, context) } -> std::convertible_to<std::shared_ptr<model::Engine>>;
    };
    static_assert(makes_engine,
                  "weft: the Mixin of this strategy's Mechanism needs std::shared_ptr<model::Engine> "
                  "make_engine(torch::nn::Module&, model::ParameterTable&, MechanismContext const&), public or with "
                  "friend Derived");
    if constexpr (makes_engine && !std::is_void_v<model::impl_of_t<M>>)
      return wrap(std::move(module), std::move(report));
    else
      return module;  // refused above; not void, which would be a second error
  }

  template <class M>
  auto wrap(M module, InitReport report) {
    auto const phase = this->phase("setup");
    this->mesh();
    auto state = model::set_up(
        model::shared_module("setup", module), std::move(report), this->session_or_fail(),
        {.initializes = Carried::initializes,
         .converts = Carried::converts,
         .precision = Composed::precision::config,
         .rules = this->rules(),
         .make_engine = [this](torch::nn::Module& root, model::ParameterTable& table, MechanismContext const& context)
             -> std::shared_ptr<model::Engine> { return Mixin::make_engine(root, table, context); }});
    this->govern(*state);
    if constexpr (Composed::memory::size != 0)
      model::set_activations(*state->module, model::memory_rules(typename Composed::memory{}, activation_config_),
                             activation_store_);
    engines_.push_back(state->engine);
    return typename Carried::template Wrapped<M>(std::move(module), std::move(state));
  }

 public:
  // ---- the step --------------------------------------------------------------------------------------------------

  /// loss.backward(), with its collectives in the phase "backward"; of the scaled loss, where the precision scales
  /// losses.
  void backward(at::Tensor const& loss) {
    auto const phase = this->phase("backward");
    if (engines_.empty() && this->world_size() > 1)
      fail<ConfigurationError>(
          "weft: backward: no model of this fabric was set up, so each of its ", this->world_size(),
          " ranks would train alone: write auto [model, optimizer] = fabric.setup(module, ...), or loss.backward() "
          "if that is meant");
    try {
      this->run_backward(loss);
    } catch (...) {
      for (auto const& engine : engines_)
        if (auto const alive = engine.lock()) alive->abandon_backward();
      throw;
    }
  }

  /// While the guard lives, backward passes of this model add gradients up on each rank (enabled = false: no change).
  /// The next pass without it reduces the sum; a step before is an error.
  template <class M>
  BackwardSyncGuard no_backward_sync(Model<M> const& model, bool enabled = true) {
    auto const& engine = model.state()->engine;
    if (enabled) return BackwardSyncGuard(engine, model::BackwardSync::accumulate);
    auto const now = engine->set_backward_sync(model::BackwardSync::reduce);
    engine->set_backward_sync(now);
    return BackwardSyncGuard(engine, now);
  }
  /// While the guard lives, backward passes of this model leave each rank its own gradients, and it may step by them:
  /// ranks part until a program brings them together again. Refused where parameters are sharded.
  template <class M>
  BackwardSyncGuard local_gradients(Model<M> const& model) {
    return BackwardSyncGuard(model.state()->engine, model::BackwardSync::local);
  }

  /// While the guard lives, parameters that the strategy shards are whole on every rank; with writeback, what is
  /// written into them is kept. Collective; the model can't be called meanwhile.
  template <class M>
  model::UnshardedParameters summon_full_params(Model<M> const& model, bool writeback = false) {
    static_cast<void>(this->session());
    return model::UnshardedParameters(model.state()->engine, writeback);
  }

  // ---- on every rank ---------------------------------------------------------------------------------------------

  /// Names the phase of collectives until the end of the scope, for the event recorder.
  [[nodiscard]] comm::Recorder::Phase phase(char const* name) const { return {*this->session().recorder, name}; }
  comm::Recorder& recorder() const { return *this->session().recorder; }

 private:
  friend fabric::Launching<Fabric>;
  explicit Fabric(std::shared_ptr<comm::Session> session) : fabric::Launching<Fabric>(std::move(session)) {}

  void close_engines() {
    for (auto const& engine : engines_)
      if (auto const alive = engine.lock()) alive->close();
  }

  template <class M>
  void announce(Model<M> const& model) {
    this->listeners_->notify(&fabric::Listener::after_setup, AfterSetup{model.module(), model.table()});
  }
  ActivationConfig activation_config_;
  std::shared_ptr<activation::ActivationStore> activation_store_ = std::make_shared<activation::HostMemory>();
  std::vector<std::weak_ptr<model::Engine>> engines_;
};

}  // namespace weft
