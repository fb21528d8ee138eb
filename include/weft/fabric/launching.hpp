// fabric/launching.hpp -- where a Fabric's ranks come from, and where each of them is.
// In: launch options and policies. Out: a function run on every rank, its outcome, and the session that a rank has.
#pragma once

#include <concepts>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <weft/comm/backend.hpp>
#include <weft/comm/gloo.hpp>
#include <weft/comm/nccl.hpp>
#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/arrivals.hpp>
#include <weft/launch/launch_options.hpp>
#include <weft/launch/outcome.hpp>
#include <weft/launch/processes.hpp>
#include <weft/launch/run.hpp>
#include <weft/launch/sessions.hpp>
#include <weft/launch/transfer.hpp>
#include <weft/launch/watchdog.hpp>
#include <weft/strategy/strategy.hpp>

namespace weft::inline v0::fabric {

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

/// The part of Fabric that starts ranks, and that each of them is.
template <class Derived>
class Launching {
 public:
  /// Runs `function(fabric)` on every rank and returns rank 0's value, or the failures. Where ranks are other processes
  /// the value travels: numbers, enums, strings, tensors, vectors, arrays, optionals, pairs, tuples and maps of them,
  /// structs with weft_visit(T&, f), std::monostate, or nothing; a tensor arrives on the CPU. SingleDevice runs it
  /// here; Fork starts one process a device, which ends when the function does; Popen runs the program again for each
  /// device, up to here, as often as there are devices: such a run ends when the function does, too; Environment runs
  /// it as the rank that this process already is.
  template <class Function>
    requires std::invocable<Function&, Derived&>
  static auto launch(LaunchOptions const& options, Function function) {
    using Result = std::invoke_result_t<Function&, Derived&>;
    using Value = typename Outcome<Result>::Value;
    static_assert(
        std::is_void_v<Result> || !Derived::uses_processes || launch::Transferable<Result>,
        "weft: launch: the function's result has to travel from rank 0's process: return numbers, strings, tensors, "
        "vectors, arrays, optionals, pairs, tuples and maps of them, a struct with weft_visit and a default "
        "constructor, or nothing");
    if (launch::inside_launched_function())
      fail<LaunchError>(
          "weft: launch: a launched function is already running in this process; launch once, and use the fabric that "
          "it was given");
    if constexpr (Derived::uses_processes && !launch::Transferable<Value>) {
      return Outcome<Result>(std::vector<Failure>());  // refused above
    } else if constexpr (!Derived::uses_processes || Derived::joins_environment) {
      std::optional<Value> value;
      auto failures = launch::run_here([&options] { return make_session(options); },
                                       [&](std::shared_ptr<comm::Session> session) {
                                         value.emplace(run_rank<Value>(std::move(session), function));
                                         return std::string();
                                       });
      return failures.empty() ? Outcome<Result>(std::move(*value)) : Outcome<Result>(std::move(failures));
    } else {
      static_assert(std::is_same_v<typename Derived::Launcher, Fork> || Derived::reruns_program,
                    "weft: this launcher starts no ranks here: write Fork, Popen, Environment, or give yours a static "
                    "cluster(variables) (launch/cluster.hpp)");
      launch::RankBody const body = [&function](std::shared_ptr<comm::Session> session) {
        bool const travels = session->ranks.global_rank == 0;
        auto const value = run_rank<Value>(std::move(session), function);
        return travels ? launch::to_bytes(value) : std::string();
      };
      launch::Processes::Result result;
      if constexpr (Derived::reruns_program) {
        if (auto const& rank = launch::popen_rank())
          launch::Processes::be_rank(rank->parent, rank->report,
                                     [&] { return body(launch::popen_session(Derived::machine, options, *rank)); });
        result = launch::run_popen(Derived::machine, options);
      } else {
        result = launch::run_forked(Derived::machine, options, body);
      }
      return result.failures.empty() ? Outcome<Result>(launch::from_bytes<Value>(result.value))
                                     : Outcome<Result>(std::move(result.failures));
    }
  }
  template <class Function>
    requires std::invocable<Function&, Derived&>
  static auto launch(Function function) {
    return launch(LaunchOptions{}, std::move(function));
  }

  /// For what the constructor made: every process runs the rest of the program.
  void launch() {
    if (session_ || launch::inside_launched_function())
      fail<LaunchError>("weft: launch: this program has been launched already; launch once");
    if constexpr (Derived::reruns_program) {
      auto const& rank = launch::popen_rank();
      if (!rank) {
        auto const result = launch::run_popen(Derived::machine, options_);
        std::exit(result.failures.empty() ? 0 : result.failures.front().exit_code);
      }
      launch::Processes::follow(rank->parent);
      launch::report_at_exit(rank->report);
      session_ = launch::popen_session(Derived::machine, options_, *rank);
    } else {
      session_ = make_session(options_);
      if (session_->failure_monitor) launch::report_at_terminate(session_->failure_monitor, session_->ranks);
    }
    launch::inside_launched_function() = launched_here_ = true;
  }
  /// Writes out what is buffered and leaves the process groups. Models and optimizers keep their values. May be called
  /// twice.
  void teardown() {
    if (!session_ || closed_) return;
    std::cout.flush();
    fabric().flush_loggers();
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

 private:
  friend Derived;
  explicit Launching(LaunchOptions options) : options_(std::move(options)) {}
  explicit Launching(std::shared_ptr<comm::Session> session) : session_(std::move(session)) {}
  Launching(Launching const&) = delete;
  Launching& operator=(Launching const&) = delete;
  Derived& fabric() { return static_cast<Derived&>(*this); }

  std::shared_ptr<comm::Session> session_or_fail() const {
    static_cast<void>(session());
    return session_;
  }

  /// Of this process alone, or of the rank that it already is.
  static std::shared_ptr<comm::Session> make_session(LaunchOptions const& options) {
    if constexpr (Derived::simulates)
      return simulated_session(Derived::machine,
                               static_cast<int>(simulated_world_v<typename Derived::composition::backend>),
                               options);  // in launch/simulated.hpp
    else if constexpr (Derived::joins_environment)
      return launch::cluster_session(Derived::machine, options,
                                     launch::cluster_of<typename Derived::Launcher>(launch::process_variables()));
    else
      return launch::single_session(Derived::machine, options,
                                    topology_of<typename Derived::composition::strategy>().devices);
  }

  template <class Value, class Function>
  static Value run_rank(std::shared_ptr<comm::Session> session, Function& function) {
    std::unique_ptr<Derived> fabric(new Derived(std::move(session)));
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
      if (Derived::uses_processes) static_cast<void>(fabric.release());
      throw;
    }
  }

  /// Without a barrier: also the way out after an exception, when other ranks may be gone.
  void release() {
    if (!session_ || std::exchange(closed_, true)) return;
    fabric().flush_after_failure(session_->ranks.global_rank);
    fabric().close_engines();
    if (std::uncaught_exceptions() > 0)
      static_cast<void>(new std::pair(session_->world, session_->mesh));  // see [Note: a failing rank leaves at once]
    if (session_->failure_monitor && std::uncaught_exceptions() > 0)
      session_->failure_monitor->failed(core::message("weft: rank ", session_->ranks.global_rank, " of ",
                                                      session_->ranks.world_size, " was left by an exception"),
                                        false);
    else if (session_->failure_monitor)
      session_->failure_monitor->leaving();
    session_->world.reset();
    if (session_->mesh) session_->mesh->close();
    if (launched_here_) launch::inside_launched_function() = false;
  }

  LaunchOptions options_;
  std::shared_ptr<comm::Session> session_;
  bool closed_ = false;
  bool launched_here_ = false;  // in the straight-line form
};

}  // namespace weft::fabric
