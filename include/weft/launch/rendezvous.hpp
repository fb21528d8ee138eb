// launch/rendezvous.hpp -- the store where ranks meet.
// In: a socket bound before any rank exists (no port race). Out: c10d's TCPStore, served by the parent or joined by a
// rank.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace weft::inline v0::launch {

/// Where a program was started without a standard stream, a socket would take its number, and what is printed would go
/// into it.
inline void open_standard_streams() {
  for (int const descriptor : {0, 1, 2})
    if (::fcntl(descriptor, F_GETFD) < 0) ::open("/dev/null", O_RDWR);  // the lowest number that is free: this one
}

/// [Note: an address needs no name server] c10d looks up the name of each address that it connects to, for its log.
/// Where no name server answers, that takes 10 s or the launch. While this lives, this thread's resolver (glibc's) has
/// no name servers: /etc/hosts is all that it reads. c10d's warning that it has no name to log is left out.
/// tests/programs/launchers.cpp
class WithoutNameServers {
 public:
  WithoutNameServers();
  ~WithoutNameServers();
  WithoutNameServers(WithoutNameServers const&) = delete;
  WithoutNameServers& operator=(WithoutNameServers const&) = delete;

 private:
  int servers_ = 0, log_level_ = 0;
};

/// Whether no name server is needed to find the host: it is an address, or localhost.
bool is_address(std::string const& host);
bool is_this_node(std::string const& host);

/// A listening socket on the loopback interface, on a port of the system's choice, or on this one.
class ListeningSocket {
 public:
  explicit ListeningSocket(std::uint16_t port = 0);
  ~ListeningSocket() { close(); }
  ListeningSocket(ListeningSocket const&) = delete;
  ListeningSocket& operator=(ListeningSocket const&) = delete;

  std::uint16_t port() const { return port_; }
  void close() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  }
  /// The store's server on this socket, which it takes over.
  c10::intrusive_ptr<c10d::Store> serve();

 private:
  int descriptor_;
  std::uint16_t port_ = 0;
};

/// A rank's connection to a store that is served elsewhere.
c10::intrusive_ptr<c10d::Store> join_store(std::string const& host, std::uint16_t port,
                                           std::chrono::milliseconds timeout);

}  // namespace weft::launch

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/rendezvous.ipp>
#endif
