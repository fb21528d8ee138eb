// launch/run.hpp -- a function on every rank, to its end.
// In: launch options and what a rank does with its session. Out: what rank 0 said, or the failures, printed.
#pragma once

#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/options.hpp>
#include <weft/launch/outcome.hpp>
#include <weft/launch/processes.hpp>
#include <weft/launch/rendezvous.hpp>
#include <weft/launch/sessions.hpp>

namespace weft::launch {

/// What one rank does; it returns what travels to the parent, if there is one.
using RankBody = std::function<std::string(std::shared_ptr<comm::Session>)>;

inline Failure report(Failure failure) {
  std::cerr << failure.message << std::endl;
  return failure;
}

/// In this process, on the session that `make` gives it.
inline std::vector<Failure> run_here(std::function<std::shared_ptr<comm::Session>()> const& make, RankBody const& body) {
  struct Inside {
    Inside() { inside_launched_function() = true; }
    ~Inside() { inside_launched_function() = false; }
  } const inside;
  int rank = 0;
  auto const failed = [&rank](char const* message) {
    return std::vector<Failure>{report({rank, core::sentence("weft: rank ", rank, " failed: ", message), 1})};
  };
  try {
    auto session = make();
    rank = session->ranks.global_rank;
    body(std::move(session));
    return {};
  } catch (std::exception const& error) {
    return failed(error.what());
  } catch (...) {
    return failed("an exception that is not a std::exception");
  }
}

/// In one forked process a device.
inline Processes::Result run_forked(Machine const& machine, LaunchOptions const& options, RankBody const& body) {
  Processes::Result result;
  try {
    if (options.num_nodes != 1)
      fail<LaunchError>("weft: Fork starts ranks on this node only, but num_nodes = ", options.num_nodes, "; start the program with torchrun and write the launcher Environment");
    int const accelerators = machine.accelerators();
    comm::RankInfo ranks;
    ranks.world_size = ranks.local_world_size = options.devices.count(accelerators);
    ListeningSocket socket;
    c10::intrusive_ptr<c10d::Store> served;
    Processes processes(ranks.world_size, options.shutdown_timeout);
    result = processes.run(
        [&](int rank) {
          socket.close();
          ranks.global_rank = ranks.local_rank = rank;
          auto store = join_store("127.0.0.1", socket.port(), options.collective_timeout);
          return body(joined_session(machine, options, ranks, accelerators, std::move(store), "127.0.0.1"));
        },
        [&] { served = socket.serve(); });
  } catch (Error const& error) {  // nothing was started: also an outcome, so that main returns its exit code
    result.failures.push_back({-1, error.what(), 1});
  }
  for (auto const& failure : result.failures) report(failure);
  return result;
}

}  // namespace weft::launch
