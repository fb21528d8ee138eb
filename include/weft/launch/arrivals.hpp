// launch/arrivals.hpp -- ranks say that they have come, and that they are through, so that who waits in vain can say
// for whom.
// In: a session and where its ranks meet. Out: the session in its world, or out of it, or an error that names the ranks
// that are missing, or there twice.
#pragma once

#include <csignal>

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
