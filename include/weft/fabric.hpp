// fabric.hpp -- the facade: one training loop, distributed as a type says.
// In: policies. Out: launch, setup, backward, clipping, collectives; the only file that sees strategies and mechanisms.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <weft/comm/backend.hpp>
#include <weft/comm/gloo.hpp>
#include <weft/comm/nccl.hpp>
#include <weft/comm/session.hpp>
#include <weft/core/diagnose.hpp>
#include <weft/core/error.hpp>
#include <weft/fabric/callbacks.hpp>
#include <weft/fabric/collectives.hpp>
#include <weft/fabric/data_loading.hpp>
#include <weft/fabric/joining.hpp>
#include <weft/fabric/logging.hpp>
#include <weft/fabric/numerics.hpp>
#include <weft/fabric/rank_zero_first.hpp>
#include <weft/fabric/seeds.hpp>
#include <weft/fabric/weights.hpp>
#include <weft/fwd.hpp>
#include <weft/init/deferred_init.hpp>
#include <weft/launch/arrivals.hpp>
#include <weft/launch/launch_options.hpp>
#include <weft/launch/outcome.hpp>
#include <weft/launch/processes.hpp>
#include <weft/launch/run.hpp>
#include <weft/launch/sessions.hpp>
#include <weft/launch/transfer.hpp>
#include <weft/launch/watchdog.hpp>
#include <weft/model/activation_rules.hpp>
#include <weft/model/clip.hpp>
#include <weft/model/members.hpp>
#include <weft/model/model.hpp>
#include <weft/model/single_device.hpp>
#include <weft/optim/clip.hpp>
#include <weft/optim/description.hpp>
#include <weft/optim/optimizer.hpp>
#include <weft/strategy/composition.hpp>
#include <weft/strategy/mechanism.hpp>

namespace weft::inline v0 {
namespace fabric {

class Probe;
template <class Strategy>
concept HasMixin = requires(typename Mechanism<Strategy>::template Mixin<Probe>* mixin) { mixin; };

/// What a Fabric stands on: its strategy if that can be carried out, else SingleDevice, so that one mistake is one
/// error.
template <class... Policies>
struct Base {
  using composition = Composition<Policies...>;
  static consteval bool usable() {
    if constexpr (composition::valid)
      return HasMixin<typename composition::strategy> && precision::HasRules<typename composition::precision>;
    return false;
  }
  template <class Derived>
  using mixin = typename Mechanism<
      std::conditional_t<usable(), typename composition::strategy, SingleDevice>>::template Mixin<Derived>;
};

/// ByDevice: what moves data between devices of the kind that this machine has.
template <class OnCpu, class OnCuda>
std::shared_ptr<comm::Communicator> connect_by_device(comm::Endpoint const& endpoint,
                                                      std::shared_ptr<comm::Recorder> recorder, std::string axis,
                                                      at::Device device) {
  comm::Connect connect = &comm::connect<OnCpu>;
  if constexpr (comm::BackendPolicy<OnCuda>)
    if (device.is_cuda()) connect = &comm::connect<OnCuda>;
  return connect(endpoint, std::move(recorder), std::move(axis), device);
}
template <class Backend>
constexpr comm::Connect connect_of() {
  if constexpr (comm::BackendPolicy<Backend>)
    return &comm::connect<Backend>;
  else
    return &connect_by_device<Gloo, Nccl>;  // also after the sentence for a backend that nothing creates, so that one
                                            // mistake is one error
}
template <class Backend>
inline constexpr bool has_backend_v = comm::BackendPolicy<Backend> || std::is_same_v<Backend, ByDevice>;

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
               public fabric::Logging<Fabric<Policies...>>,
               public fabric::Numerics<Fabric<Policies...>>,
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
                "std::shared_ptr<model::Engine> make_engine(torch::nn::Module&, model::ParameterTable const&)");
  static_assert(
      fabric::has_backend_v<typename Composed::backend> || uses_nccl_v<typename Composed::backend> || !Composed::valid,
      "weft: nothing here creates this backend: for Simulated include weft/launch/simulated.hpp, for one of your own "
      "specialize comm::BackendFactory (comm/backend.hpp)");
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
  static constexpr bool simulates = simulated_world_v<Backend> != 0;
  static constexpr bool uses_processes = topology_of<typename Composed::strategy>().processes && !simulates;
  using Launcher = typename Composed::launcher;
  static constexpr bool joins_environment = launch::joins_ranks_v<Launcher> && !simulates;
  static constexpr bool reruns_program = std::is_same_v<Launcher, Popen> && uses_processes;

  // ---- launching -------------------------------------------------------------------------------------------------

  /// Runs `function(fabric)` on every rank and returns rank 0's value, or the failures. SingleDevice runs it here; Fork
  /// starts one process a device, which ends when the function does; Popen runs the program again for each device, up
  /// to here, as often as there are devices: such a run ends when the function does, too; Environment runs it as the
  /// rank that this process already is.
  template <class Function>
    requires std::invocable<Function&, Fabric&>
  static auto launch(LaunchOptions const& options, Function function) {
    using Result = std::invoke_result_t<Function&, Fabric&>;
    using Value = typename Outcome<Result>::Value;
    static_assert(
        std::is_void_v<Result> || !uses_processes || launch::Transferable<Result>,
        "weft: launch: the function's result has to travel from rank 0's process: return numbers, strings, tensors, "
        "or vectors, optionals, pairs, tuples and maps of them, or nothing");
    if (launch::inside_launched_function())
      fail<LaunchError>(
          "weft: launch: a launched function is already running in this process; launch once, and use the fabric that "
          "it was given");
    if constexpr (uses_processes && !launch::Transferable<Value>) {
      return Outcome<Result>(std::vector<Failure>());  // refused above
    } else if constexpr (!uses_processes || joins_environment) {
      std::optional<Value> value;
      auto failures = launch::run_here([&options] { return make_session(options); },
                                       [&](std::shared_ptr<comm::Session> session) {
                                         value.emplace(run_rank<Value>(std::move(session), function));
                                         return std::string();
                                       });
      return failures.empty() ? Outcome<Result>(std::move(*value)) : Outcome<Result>(std::move(failures));
    } else {
      static_assert(std::is_same_v<Launcher, Fork> || reruns_program,
                    "weft: this launcher starts no ranks here: write Fork, Popen, Environment, or give yours a static "
                    "cluster(variables) (launch/cluster.hpp)");
      launch::RankBody const body = [&function](std::shared_ptr<comm::Session> session) {
        bool const travels = session->ranks.global_rank == 0;
        auto const value = run_rank<Value>(std::move(session), function);
        return travels ? launch::to_bytes(value) : std::string();
      };
      launch::Processes::Result result;
      if constexpr (reruns_program) {
        if (auto const& rank = launch::popen_rank())
          launch::Processes::be_rank(rank->parent, rank->report,
                                     [&] { return body(launch::popen_session(machine, options, *rank)); });
        result = launch::run_popen(machine, options);
      } else {
        result = launch::run_forked(machine, options, body);
      }
      return result.failures.empty() ? Outcome<Result>(launch::from_bytes<Value>(result.value))
                                     : Outcome<Result>(std::move(result.failures));
    }
  }
  template <class Function>
    requires std::invocable<Function&, Fabric&>
  static auto launch(Function function) {
    return launch(LaunchOptions{}, std::move(function));
  }

  /// The straight-line form: every process runs the whole program. `launch()` comes before anything else. Under Popen
  /// the process that was started first only watches: it leaves launch() by exit, with 0 if all ranks ended well.
  explicit Fabric(LaunchOptions options = {}) : options_(std::move(options)) {
    static_assert(!uses_processes || joins_environment || reruns_program,
                  "weft: Fabric<...> fabric(options); fabric.launch() needs ranks that already run the whole program: "
                  "write the launcher "
                  "Environment or Popen, or Fabric<...>::launch(options, function)");
  }
  void launch() {
    if (session_ || launch::inside_launched_function())
      fail<LaunchError>("weft: launch: this program has been launched already; launch once");
    if constexpr (reruns_program) {
      auto const& rank = launch::popen_rank();
      if (!rank) {
        auto const result = launch::run_popen(machine, options_);
        std::exit(result.failures.empty() ? 0 : result.failures.front().exit_code);
      }
      launch::Processes::follow(rank->parent);
      launch::report_at_exit(rank->report);
      session_ = launch::popen_session(machine, options_, *rank);
    } else {
      session_ = make_session(options_);
      if (session_->failure_monitor) launch::report_at_terminate(session_->failure_monitor, session_->ranks);
    }
    launch::inside_launched_function() = launched_here_ = true;
  }
  ~Fabric() { release(); }
  Fabric(Fabric const&) = delete;
  Fabric& operator=(Fabric const&) = delete;

  /// Writes out what is buffered and leaves the process groups. Models and optimizers keep their values. May be called
  /// twice.
  void teardown() {
    if (!session_ || closed_) return;
    std::cout.flush();
    this->flush_loggers();
    launch::depart(*session_);
    if (session_->world) session_->world->barrier();  // nobody leaves while another still sends
    if (session_->failure_monitor) session_->failure_monitor->leaving();
    release();
  }

  // ---- where am I ------------------------------------------------------------------------------------------------

  comm::Session& session() const {
    if (!session_) fail<LaunchError>("weft: call fabric.launch() before using the fabric");
    if (closed_) fail<LaunchError>("weft: the fabric has been torn down; nothing can be done with it any more");
    return *session_;
  }
  int global_rank() const { return session().ranks.global_rank; }
  int local_rank() const { return session().ranks.local_rank; }
  int node_rank() const { return session().ranks.node_rank; }
  int world_size() const { return session().ranks.world_size; }
  bool is_global_zero() const { return global_rank() == 0; }
  at::Device device() const { return session().device; }
  /// How often the launcher has started the job again: 0 at first.
  int attempt() const { return session().attempt; }

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
      std::tuple made{model, setup_optimizer(states_of(model), std::forward<Optimizers>(optimizers))...};
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
    if (!how.device && device() != at::kCPU) how.device = device();
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
    constexpr bool makes_engine = requires(Fabric& self, torch::nn::Module& root, model::ParameterTable& table) {
      { self.Mixin::make_engine(root, table) } -> std::convertible_to<std::shared_ptr<model::Engine>>;
    };
    static_assert(makes_engine,
                  "weft: the Mixin of this strategy's Mechanism needs std::shared_ptr<model::Engine> "
                  "make_engine(torch::nn::Module&, model::ParameterTable const&), public or with friend Derived");
    if constexpr (makes_engine && !std::is_void_v<model::impl_of_t<M>>)
      return wrap(std::move(module), std::move(report));
    else
      return module;  // refused above; not void, which would be a second error
  }

  template <class M>
  auto wrap(M module, InitReport report) {
    auto const phase = this->phase("setup");
    c10::impl::ExcludeDispatchKeyGuard const at_once(
        c10::DispatchKey::DeferredInit);  // also inside of a scope that defers
    auto state = std::make_shared<model::ModelState>();
    state->module = model::shared_module("setup", module);
    state->refuse_second_setup();
    state->session = session_or_fail();
    state->init = std::move(report);
    state->init.uninitialized = init::uninitialized_in(*state->module);
    if (init::waits_elsewhere(*state->module, device())) init::initialize(*state->module, [](at::Tensor const&) {});
    auto const conversions = model::convert(*state->module, this->rules(), requires { requires Mixin::converts; });
    if (device() != at::kCPU) state->module->to(device());
    unit::check_reachable(*state->module);
    model::check_members(*state->module);
    state->table = model::ParameterTable::of(*state->module);
    for (auto const& [impl, conversion] : conversions)
      if (auto const row = state->table.index_of(conversion.first)) state->table.rows()[*row].dtype = conversion.second;
    this->govern(*state);
    if (state->table.rows().empty())
      fail<ConfigurationError>(
          "weft: setup: the model has no parameters; register them (register_parameter, register_module) in its "
          "constructor");
    for (auto const& row : state->table.rows())
      if (model::ShardedParameters::contains(row.tensor))
        fail<ConfigurationError>("weft: setup: parameter ", row.name,
                                 " is a shard of a model that was set up before, with ", row.tensor.numel(),
                                 " elements of the whole; use that model, or save its weights and "
                                 "load them into a new module");
    if constexpr (!requires { requires Mixin::initializes; })
      init::initialize(*state->module, [](at::Tensor const&) {});
    state->engine = Mixin::make_engine(*state->module, state->table);
    for (auto const& [impl, conversion] : conversions)  // buffers that had no memory until now
      if (!state->table.index_of(conversion.first)) model::convert(conversion.first, conversion.second);
    if (state->engine->guards_units()) unit::adopt(*state->module, state->activity);
    if constexpr (Composed::memory::size != 0)
      model::set_activations(*state->module, model::memory_rules(typename Composed::memory{}, activation_config_),
                             activation_store_);
    engines_.push_back(state->engine);
    if constexpr (requires { typename Mixin::template Wrapped<M>; })
      return
          typename Mixin::template Wrapped<M>(std::move(module), std::move(state));  // the strategy's own kind of Model
    else
      return Model<M>(std::move(module), std::move(state));
  }

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

  // ---- the step --------------------------------------------------------------------------------------------------

  /// loss.backward(), with its collectives in the phase "backward"; of the scaled loss, where the precision scales
  /// losses.
  void backward(at::Tensor const& loss) {
    auto const phase = this->phase("backward");
    if (engines_.empty() && world_size() > 1)
      fail<ConfigurationError>(
          "weft: backward: no model of this fabric was set up, so each of its ", world_size(),
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

  /// While the guard lives, backward passes of this model keep their gradients local (enabled = false: no change).
  template <class M>
  BackwardSyncGuard no_backward_sync(Model<M> const& model, bool enabled = true) {
    auto const& engine = model.state()->engine;
    if (enabled) return BackwardSyncGuard(engine, false);
    bool const now = engine->set_backward_sync(true);
    engine->set_backward_sync(now);
    return BackwardSyncGuard(engine, now);
  }

  /// While the guard lives, parameters that the strategy shards are whole on every rank; with writeback, what is
  /// written into them is kept. Collective; the model can't be called meanwhile.
  template <class M>
  model::UnshardedParameters summon_full_params(Model<M> const& model, bool writeback = false) {
    static_cast<void>(session());
    return model::UnshardedParameters(model.state()->engine, writeback);
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

  // ---- on every rank ---------------------------------------------------------------------------------------------

  /// Names the phase of collectives until the end of the scope, for the event recorder.
  [[nodiscard]] comm::Recorder::Phase phase(char const* name) const { return {*session().recorder, name}; }
  comm::Recorder& recorder() const { return *session().recorder; }

 private:
  explicit Fabric(std::shared_ptr<comm::Session> session) : session_(std::move(session)) {}

  std::shared_ptr<comm::Session> session_or_fail() const {
    static_cast<void>(session());
    return session_;
  }

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
  static constexpr std::string_view loss_scaling = [] {
    if constexpr (Composed::valid)
      if (Composed::precision::config.loss_scaling) return std::string_view(Composed::precision::name);
    return std::string_view();
  }();

  template <class O>
  auto setup_optimizer(States const& models, O&& optimizer) {
    using Plain = std::remove_cvref_t<O>;
    optim::assert_optimizer<Plain>();
    if constexpr (OptimizerDescription<Plain>) {
      fabric::UnshardedShapes const whole(models);
      auto made = optimizer.make(fabric::trainable_parameters(models));
      fabric::refuse_lbfgs(models, *made, loss_scaling);
      auto rule = this->step_rule(models, *made);
      return announcing(Optimizer(std::move(made), std::move(rule)));
    } else if constexpr (std::is_base_of_v<torch::optim::Optimizer, Plain>) {
      fabric::require_parameters_of(models, optimizer, "setup");
      fabric::refuse_lbfgs(models, optimizer, loss_scaling);
      if constexpr (std::is_lvalue_reference_v<O>) {
        return announcing(Optimizer<Plain>::borrow(optimizer, this->step_rule(models, optimizer)));
      } else {
        auto owned = std::make_unique<Plain>(std::move(optimizer));
        auto rule = this->step_rule(models, *owned);
        return announcing(Optimizer<Plain>(std::move(owned), std::move(rule)));
      }
    } else {
      return std::monostate();  // refused above; not void, which would be a second error
    }
  }

  template <class O>
  at::Tensor clip_models(States const& models, Optimizer<O> const& optimizer, ClipNorm clip) {
    fabric::require_parameters_of(models, *optimizer, "clip_gradients");
    auto const phase = this->phase("clip");
    if (!optimizer.unscale()) clip.error_if_nonfinite = false;
    std::vector<model::Clipped> clipped;
    for (auto const* const model : models) clipped.push_back({&model->table, model->engine.get()});
    return model::clip(clipped, optimizer.parameters(), clip);
  }
  template <class O>
  void clip_models(States const& models, Optimizer<O> const& optimizer, ClipValue const& clip) {
    fabric::require_parameters_of(models, *optimizer, "clip_gradients");
    auto const phase = this->phase("clip");
    optimizer.unscale();
    optim::clip(optimizer.parameters(), clip);
  }

  template <class M>
  void announce(Model<M> const& model) {
    this->listeners_->notify(&fabric::Listener::after_setup, AfterSetup{model.module(), model.table()});
  }
  template <class O>
  O announcing(O optimizer) {
    optimizer.after_step([listeners = this->listeners_](torch::optim::Optimizer& stepped) {
      listeners->notify(&fabric::Listener::after_step, AfterOptimizerStep{stepped});
    });
    return optimizer;
  }

  // ---- one rank --------------------------------------------------------------------------------------------------

  /// Of this process alone, or of the rank that it already is.
  static std::shared_ptr<comm::Session> make_session(LaunchOptions const& options) {
    if constexpr (simulates)
      return simulated_session(machine, static_cast<int>(simulated_world_v<Backend>),
                               options);  // in launch/simulated.hpp
    else if constexpr (joins_environment)
      return launch::cluster_session(machine, options, launch::cluster_of<Launcher>(launch::process_variables()));
    else
      return launch::single_session(machine, options, topology_of<typename Composed::strategy>().devices);
  }

  template <class Value, class Function>
  static Value run_rank(std::shared_ptr<comm::Session> session, Function& function) {
    std::unique_ptr<Fabric> fabric(new Fabric(std::move(session)));
    try {
      if constexpr (std::is_same_v<Value, std::monostate>) {
        std::invoke(function, *fabric);
        fabric->teardown();
        return {};
      } else {
        Value value = std::invoke(function, *fabric);
        fabric->teardown();
        return value;
      }
    } catch (...) {
      // [Note: a failing rank leaves at once] Destroying a process group waits for collectives that other ranks may
      // never join. A rank whose function threw has only its message to deliver, so its group is left to the
      // end of the process. tests/comm/communicator.cpp
      fabric->flush_after_failure(fabric->session_->ranks.global_rank);
      if (fabric->session_->failure_monitor)
        launch::report_failure(*fabric->session_->failure_monitor, fabric->session_->ranks);
      if (uses_processes) static_cast<void>(fabric.release());
      throw;
    }
  }

  /// Without a barrier: also the way out after an exception, when other ranks may be gone.
  void release() {
    if (!session_ || std::exchange(closed_, true)) return;
    this->flush_after_failure(session_->ranks.global_rank);
    for (auto const& engine : engines_)
      if (auto const alive = engine.lock()) alive->close();
    if (std::uncaught_exceptions() > 0)
      static_cast<void>(new auto(session_->world));  // see [Note: a failing rank leaves at once]
    if (session_->failure_monitor && std::uncaught_exceptions() > 0)
      session_->failure_monitor->failed(core::message("weft: rank ", session_->ranks.global_rank, " of ",
                                                      session_->ranks.world_size, " was left by an exception"),
                                        false);
    else if (session_->failure_monitor)
      session_->failure_monitor->leaving();
    session_->world.reset();
    if (launched_here_) launch::inside_launched_function() = false;
  }

  LaunchOptions options_;
  std::shared_ptr<comm::Session> session_;
  ActivationConfig activation_config_;
  std::shared_ptr<activation::ActivationStore> activation_store_ = std::make_shared<activation::HostMemory>();
  std::vector<std::weak_ptr<model::Engine>> engines_;
  bool closed_ = false;
  bool launched_here_ = false;  // in the straight-line form
};

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/fabric.ipp>
#endif
