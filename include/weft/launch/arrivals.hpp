// launch/arrivals.hpp -- ranks say that they have come, and that they are through, so that who waits in vain can say
// for whom.
// In: a session and where its ranks meet. Out: the session in its world, or out of it, or an error that names the ranks
// that are missing, or there twice.
#pragma once

#include <csignal>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <weft/comm/backend.hpp>
#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/processes.hpp>

namespace weft::inline v0::launch {

/// [Note: a lost peer is an error] Writing to a rank that is gone would end this one by SIGPIPE, without a word, and it
/// might be taken for the one that failed first. Ignored, it is an exception that says what was lost. A program that
/// handles the signal keeps its handler. tests/fabric/fabric.cpp
inline void ignore_broken_pipes() {
  struct sigaction before{};
  if (::sigaction(SIGPIPE, nullptr, &before) == 0 && before.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

inline void arrive(comm::Session& session, comm::Endpoint const& where, comm::Connect connect) {
  auto const key = [](int rank) { return "weft/here/" + std::to_string(rank); };
  if (where.store->add(key(where.rank), 1) > 1)
    fail<LaunchError>("weft: two processes say that they are rank ", where.rank, " of ", where.size,
                      "; give each process a rank of its own");
  ignore_broken_pipes();
  try {
    session.connect_world(where, connect);
  } catch (std::exception const& error) {
    std::vector<int> missing;
    for (int rank = 0; rank < where.size; ++rank)
      if (where.store->add(key(rank), 0) == 0) missing.push_back(rank);
    if (missing.empty()) throw;
    fail<LaunchError>(error.what(), still_elsewhere(missing),
                      "; did all ranks start, and does each of them come to launch?");
  }
}

/// [Note: a rank that is through] A launch ends with a barrier, and a backend pairs calls by their number alone: Gloo
/// would pair the all-reduce of a rank that makes a step more with the barrier of one that makes none, and both would
/// succeed. So ranks meet in the store first. In the checking grade the barrier itself finds out.
/// tests/data_parallel/uneven_steps.cpp
inline void depart(comm::Session const& session) {
  auto const& where = session.endpoint;
  if (!session.world || session.alone || where.check_collectives) return;
  auto const key = [](int rank) { return "weft/through/" + std::to_string(rank); };
  where.store->add(key(where.rank), 1);
  if (where.store->add("weft/through", 1) == where.size) where.store->set("weft/all through", "1");
  try {
    where.store->wait({"weft/all through"}, where.timeout);
  } catch (std::exception const&) {
    std::vector<int> missing;
    for (int rank = 0; rank < where.size; ++rank)
      if (where.store->add(key(rank), 0) == 0) missing.push_back(rank);
    fail<CommunicationError>("weft: rank ", where.rank, " of ", where.size, " is through, and waited ",
                             where.timeout.count(), " ms for the others", still_elsewhere(missing),
                             "; give all ranks equally many batches, and let them make the same calls "
                             "(LaunchOptions::check_collectives finds the first that differs)");
  }
}

}  // namespace weft::launch
