// launch/run.hpp -- a function on every rank, to its end.
// In: launch options and what a rank does with its session. Out: what rank 0 said, or the failures, printed.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/launch_options.hpp>
#include <weft/launch/outcome.hpp>
#include <weft/launch/popen.hpp>
#include <weft/launch/processes.hpp>
#include <weft/launch/rendezvous.hpp>
#include <weft/launch/sessions.hpp>

namespace weft::inline v0::launch {

/// What one rank does; it returns what travels to the parent, if there is one.
using RankBody = std::function<std::string(std::shared_ptr<comm::Session>)>;

/// In this process, on the session that `make` gives it.
std::vector<Failure> run_here(std::function<std::shared_ptr<comm::Session>()> const& make, RankBody const& body);

namespace detail {

/// Starts all ranks, again where options say so, until they all return.
/// start(processes, ranks, socket, attempt) starts them once; ranks has the world's size.
template <class Start>
Processes::Result run_ranks(char const* launcher, Machine const& machine, LaunchOptions const& options,
                            Start const& start) {
  open_standard_streams();
  Processes::Result result;
  for (int attempt = 0;; ++attempt) {
    result = {};
    comm::RankInfo ranks;
    try {
      check_times(options);
      check_signals(options);
      if (options.num_nodes != 1)
        fail<LaunchError>("weft: ", launcher, " starts ranks on this node only, but num_nodes = ", options.num_nodes,
                          "; start the program with torchrun and write the launcher Environment");
      if (options.max_restarts < 0)
        fail<LaunchError>("weft: launch: max_restarts = ", options.max_restarts, "; write 0 or more");
      ranks.world_size = ranks.local_world_size = options.devices.count(machine.accelerators());
      require_descriptors(launcher, ranks.world_size);
      ListeningSocket socket;
      Processes processes(ranks.world_size, options.shutdown_timeout, options.forward_signals);
      result = start(processes, ranks, socket, attempt);
    } catch (Error const& error) {  // nothing was started: also an outcome, so that main returns its exit code
      result.failures.push_back({-1, error.what(), 1});
    } catch (std::exception const& error) {  // such as a store that gets no thread
      std::string const reason = error.what();
      result.failures.push_back(
          {-1,
           core::message("weft: ", launcher, ": ranks could not be started: ", reason.substr(0, reason.find('\n')),
                         "; may this user have more threads and processes (ulimit -u)?"),
           1});
    }
    for (auto const& sentence : sentences(result.failures, ranks.world_size)) std::cerr << sentence << std::endl;
    // What no rank has failed at, such as Ctrl-C, is not tried again.
    if (result.failures.empty() || result.failures.front().rank < 0 || attempt >= options.max_restarts) return result;
    std::cerr << "weft: starting all ranks again (restart " << attempt + 1 << " of " << options.max_restarts << ")"
              << std::endl;
  }
}

std::shared_ptr<comm::Session> started_session(Machine const& machine, LaunchOptions const& options,
                                               comm::RankInfo const& ranks, std::uint16_t port, int attempt);

}  // namespace detail

/// In one forked process a device.
Processes::Result run_forked(Machine const& machine, LaunchOptions const& options, RankBody const& body);

/// In one new run of this program a device, once: each run goes as far as the program's first launch.
Processes::Result run_popen(Machine const& machine, LaunchOptions const& options);

/// The session of a rank that Popen started.
std::shared_ptr<comm::Session> popen_session(Machine const& machine, LaunchOptions const& options,
                                             PopenRank const& rank);

}  // namespace weft::launch

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/run.ipp>
#endif
