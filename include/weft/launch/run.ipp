// launch/run.ipp -- definitions of launch/run.hpp.
#pragma once

#include <weft/launch/run.hpp>

#include <utility>

#include <weft/core/build.hpp>
#include <weft/launch/watchdog.hpp>

namespace weft::inline v0::launch {

WEFT_INLINE std::vector<Failure> run_here(std::function<std::shared_ptr<comm::Session>()> const& make,
                                          RankBody const& body) {
  struct Inside {
    Inside() { inside_launched_function() = true; }
    ~Inside() { inside_launched_function() = false; }
  } const inside;
  int rank = -1;  // until there is a session: a process that can't join may not know which one it is, and its message
                  // says what it knows
  failure_is_printed() = false;
  auto const failed = [&rank](std::string const& message) {
    Failure failure{rank, rank < 0 ? message : core::message("weft: rank ", rank, " failed: ", message), 1};
    if (!failure_is_printed()) std::cerr << failure.message << std::endl;
    return std::vector{std::move(failure)};
  };
  try {
    auto session = make();
    rank = session->ranks.global_rank;
    body(std::move(session));
    return {};
  } catch (...) {
    return failed(Processes::report_of_exception().text);
  }
}

}  // namespace weft::launch

namespace weft::inline v0::launch::detail {

WEFT_INLINE std::shared_ptr<comm::Session> started_session(Machine const& machine, LaunchOptions const& options,
                                                           comm::RankInfo const& ranks, std::uint16_t port,
                                                           int attempt) {
  auto session = joined_session(machine, options, ranks, machine.accelerators(),
                                join_store("127.0.0.1", port, options.rendezvous_timeout), "127.0.0.1");
  session->attempt = attempt;
  return session;
}

}  // namespace weft::launch::detail

namespace weft::inline v0::launch {

WEFT_INLINE Processes::Result run_forked(Machine const& machine, LaunchOptions const& options, RankBody const& body) {
  return detail::run_ranks(
      "Fork", machine, options, [&](Processes& processes, comm::RankInfo& ranks, ListeningSocket& socket, int attempt) {
        c10::intrusive_ptr<c10d::Store> served;
        return processes.run(
            [&](int rank) {
              socket.close();
              ranks.global_rank = ranks.local_rank = rank;
              return body(detail::started_session(machine, options, ranks, socket.port(), attempt));
            },
            [&] { served = socket.serve(); });
      });
}

WEFT_INLINE Processes::Result run_popen(Machine const& machine, LaunchOptions const& options) {
  return detail::run_ranks("Popen", machine, options,
                           [&](Processes& processes, comm::RankInfo& ranks, ListeningSocket& socket, int attempt) {
                             static bool launched = false;
                             if (attempt == 0 && std::exchange(launched, true))
                               fail<LaunchError>(
                                   "weft: Popen: this program has launched already, and ranks, as new runs of it, "
                                   "would run that first launch again; launch once, or write the launcher Fork");
                             // Served before ranks exist: nothing is forked here, so threads do no harm.
                             auto const port = socket.port();
                             auto const held = signals_to_hold(options.forward_signals);
                             auto const served = socket.serve();
                             return processes.run_commands(
                                 [&](int rank, int report) {
                                   return run_again({rank, ranks.world_size, port, report, ::getpid(), attempt, held});
                                 },
                                 [] {});
                           });
}

WEFT_INLINE std::shared_ptr<comm::Session> popen_session(Machine const& machine, LaunchOptions const& options,
                                                         PopenRank const& rank) {
  deliver_held_signals(rank);
  comm::RankInfo ranks;
  ranks.global_rank = ranks.local_rank = rank.rank;
  ranks.world_size = ranks.local_world_size = rank.world_size;
  if (int const wanted = options.devices.count(machine.accelerators()); wanted != rank.world_size)
    fail<LaunchError>("weft: Popen: the first run of this program asked for ", rank.world_size,
                      " ranks, this one for devices = ", options.devices.text(), "; let both ask alike");
  return detail::started_session(machine, options, ranks, rank.port, rank.attempt);
}

}  // namespace weft::launch
