// launch/arrivals.hpp -- ranks say that they have come, and that they are through, so that who waits in vain can say
// for whom.
// In: a session and where its ranks meet. Out: the session in its world, or out of it, or an error that names the ranks
// that are missing, or there twice.
#pragma once

#include <chrono>
#include <csignal>
#include <string>
#include <utility>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <weft/comm/backend.hpp>
#include <weft/comm/session.hpp>

namespace weft::inline v0::launch {

/// [Note: a lost peer is an error] Writing to a rank that is gone would end this one by SIGPIPE, without a word, and it
/// might be taken for the one that failed first. Ignored, it is an exception that says what was lost. A program that
/// handles the signal keeps its handler. tests/fabric/fabric.cpp
inline void ignore_broken_pipes() {
  struct sigaction before{};
  if (::sigaction(SIGPIPE, nullptr, &before) == 0 && before.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

/// "node1 (process 4711)": this process, for other ranks' messages.
std::string this_place();

/// Ranks whose numbers somebody else gave say who they are before they wait for each other.
///
/// [Note: a roll that is closed] Once all ranks are here, whoever still comes to their store belongs to another job: it
/// is refused, and says nothing in the store, where it would end a job that is well. tests/launch/environment_jobs.cpp
class Roll {
 public:
  Roll(c10::intrusive_ptr<c10d::Store> store, std::string launcher, comm::RankInfo const& ranks);

  /// All ranks of this store are here, and this process is none of them.
  bool is_closed() const { return closed_; }
  /// Until all ranks are here; false: a number came twice. Throws where ranks do not come.
  bool wait(std::chrono::milliseconds timeout) const;
  /// Waits for those that come a moment later; then, in one text on all ranks, which numbers came twice, and from
  /// where.
  [[noreturn]] void refuse() const;

 private:
  static constexpr char const* outcome_key = "weft/roll";
  static std::string key(int rank) { return "weft/roll/" + std::to_string(rank); }

  c10::intrusive_ptr<c10d::Store> store_;
  std::string launcher_;
  comm::RankInfo ranks_;
  bool closed_ = false;
};

void arrive(comm::Session& session, comm::Endpoint const& where, comm::Connect connect);

/// [Note: a rank that is through] A launch ends with a barrier, and a backend pairs calls by their number alone: Gloo
/// would pair the all-reduce of a rank that makes a step more with the barrier of one that makes none, and both would
/// succeed. So ranks meet in the store first. In the checking grade the barrier itself finds out.
/// tests/data_parallel/uneven_steps.cpp
void depart(comm::Session const& session);

}  // namespace weft::launch

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/arrivals.ipp>
#endif
