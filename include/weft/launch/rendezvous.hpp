// launch/rendezvous.hpp -- the store where ranks meet.
// In: a socket bound before any rank exists (no port race). Out: c10d's TCPStore, served by the parent or joined by a
// rank.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <weft/core/error.hpp>

namespace weft::inline v0::launch {

/// Where a program was started without a standard stream, a socket would take its number, and what is printed would go
/// into it.
inline void open_standard_streams() {
  for (int const descriptor : {0, 1, 2})
    if (::fcntl(descriptor, F_GETFD) < 0) ::open("/dev/null", O_RDWR);  // the lowest number that is free: this one
}

/// A listening socket on the loopback interface, on a port of the system's choice.
class ListeningSocket {
 public:
  ListeningSocket() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (descriptor_ < 0 || ::bind(descriptor_, generic, length) != 0 || ::listen(descriptor_, 1024) != 0 ||
        ::getsockname(descriptor_, generic, &length) != 0)
      fail<LaunchError>("weft: no socket for the ranks to meet on: ", std::strerror(errno));
    port_ = ntohs(address.sin_port);
  }
  ~ListeningSocket() { close(); }
  ListeningSocket(ListeningSocket const&) = delete;
  ListeningSocket& operator=(ListeningSocket const&) = delete;

  std::uint16_t port() const { return port_; }
  void close() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  }
  /// The store's server on this socket, which it takes over.
  c10::intrusive_ptr<c10d::Store> serve() {
    c10d::TCPStoreOptions options;
    options.port = port_;
    options.isServer = true;
    options.waitWorkers = false;
    options.masterListenFd = std::exchange(descriptor_, -1);
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

 private:
  int descriptor_;
  std::uint16_t port_ = 0;
};

/// A rank's connection to a store that is served elsewhere.
inline c10::intrusive_ptr<c10d::Store> join_store(std::string const& host, std::uint16_t port,
                                                  std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.timeout = timeout;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace weft::launch
