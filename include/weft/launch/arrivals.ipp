// launch/arrivals.ipp -- definitions of launch/arrivals.hpp.
#pragma once

#include <weft/launch/arrivals.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/processes.hpp>

namespace weft::inline v0::launch {

WEFT_INLINE std::string this_place() {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return core::message(host, " (process ", ::getpid(), ")");
}

WEFT_INLINE Roll::Roll(c10::intrusive_ptr<c10d::Store> store, std::string launcher, comm::RankInfo const& ranks)
    : store_(std::move(store)), launcher_(std::move(launcher)), ranks_(ranks) {
  auto const mine = key(ranks_.global_rank);
  auto const times = store_->add(mine, 1);
  store_->set(mine + "/" + std::to_string(times), this_place());
  if (times > 1)
    closed_ = store_->compareSet(outcome_key, std::string(), std::string("twice")) == "all";
  else if (store_->add("weft/roll/come", 1) == ranks_.world_size)
    store_->compareSet(outcome_key, std::string(), std::string("all"));
}

WEFT_INLINE bool Roll::wait(std::chrono::milliseconds timeout) const {
  try {
    store_->wait({outcome_key}, timeout);
  } catch (std::exception const&) {
    std::vector<int> missing;
    for (int rank = 0; rank < ranks_.world_size; ++rank)
      if (store_->add(key(rank), 0) == 0) missing.push_back(rank);
    if (missing.empty()) throw;
    fail<LaunchError>("weft: ", launcher_, ": not all ranks came within ", timeout.count(), " ms",
                      still_elsewhere(missing), "; did all ranks start, and does each of them come to launch?");
  }
  return store_->get_to_str(outcome_key) == "all";
}

WEFT_INLINE void Roll::refuse() const {
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  std::string twice;
  std::vector<int> missing;
  for (int rank = 0; rank < ranks_.world_size; ++rank) {
    auto const times = store_->add(key(rank), 0);
    if (times == 0) missing.push_back(rank);
    if (times < 2) continue;
    twice += core::message(twice.empty() ? "" : ", ", "rank ", rank, " came ",
                           times == 2 ? std::string("twice") : std::to_string(times) + " times");
    constexpr std::int64_t most = 8;
    for (std::int64_t i = 1; i <= std::min(times, most); ++i) {
      auto const place = key(rank) + "/" + std::to_string(i);
      twice += (i == 1      ? ", from "
                : i < times ? ", "
                            : " and ") +
               (store_->check({place}) ? store_->get_to_str(place) : std::string("elsewhere"));
    }
    if (times > most) twice += " and others";
  }
  auto const text = core::message("weft: ", launcher_, ": of ", ranks_.world_size, " ranks ", twice,
                                  missing.empty() ? "" : "; " + names_of(missing) + " did not come",
                                  "; give each process a rank of its own, and each job a port of its own");
  fail<LaunchError>(store_->compareSet("weft/roll/twice", std::string(), text));
}

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
