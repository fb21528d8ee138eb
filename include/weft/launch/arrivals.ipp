// launch/arrivals.ipp -- definitions of launch/arrivals.hpp.
#pragma once

#include <weft/launch/arrivals.hpp>

#include <exception>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/processes.hpp>

namespace weft::inline v0::launch {

WEFT_INLINE void arrive(comm::Session& session, comm::Endpoint const& where, comm::Connect connect) {
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

WEFT_INLINE void depart(comm::Session const& session) {
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
