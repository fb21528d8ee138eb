// launch/arrivals.hpp -- ranks say that they have come, so that who waits in vain can say for whom.
// In: a session and where its ranks meet. Out: the session in its world, or an error that names the ranks that are missing, or there twice.
#pragma once

#include <csignal>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <weft/comm/backend.hpp>
#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/processes.hpp>

namespace weft::launch {

/// [Note: a lost peer is an error] Writing to a rank that is gone would end this one by SIGPIPE, without a word, and it might be taken for the one that
/// failed first. Ignored, it is an exception that says what was lost. A program that handles the signal keeps its handler. tests/fabric/fabric.cpp
inline void ignore_broken_pipes() {
  struct sigaction before {};
  if (::sigaction(SIGPIPE, nullptr, &before) == 0 && before.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

inline void arrive(comm::Session& session, comm::Endpoint const& where, comm::Connect connect) {
  auto const key = [](int rank) { return "weft/here/" + std::to_string(rank); };
  if (where.store->add(key(where.rank), 1) > 1)
    fail<LaunchError>("weft: two processes say that they are rank ", where.rank, " of ", where.size, "; give each process a rank of its own");
  ignore_broken_pipes();
  try {
    session.connect_world(where, connect);
  } catch (std::exception const& error) {
    std::vector<int> missing;
    for (int rank = 0; rank < where.size; ++rank)
      if (where.store->add(key(rank), 0) == 0) missing.push_back(rank);
    if (missing.empty()) throw;
    fail<LaunchError>(error.what(), still_elsewhere(missing), "; did all ranks start, and does each of them come to launch?");
  }
}

}  // namespace weft::launch
