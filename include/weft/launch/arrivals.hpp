// launch/arrivals.hpp -- ranks say that they have come, so that who waits in vain can say for whom.
// In: a session and where its ranks meet. Out: the session in its world, or an error that names the ranks that are missing, or there twice.
#pragma once

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <weft/comm/backend.hpp>
#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/processes.hpp>

namespace weft::launch {

inline void arrive(comm::Session& session, comm::Endpoint const& where, comm::Connect connect) {
  auto const key = [](int rank) { return "weft/here/" + std::to_string(rank); };
  if (where.store->add(key(where.rank), 1) > 1)
    fail<LaunchError>("weft: two processes say that they are rank ", where.rank, " of ", where.size, "; give each process a rank of its own");
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
