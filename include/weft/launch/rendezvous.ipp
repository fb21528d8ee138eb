// launch/rendezvous.ipp -- definitions of launch/rendezvous.hpp.
#pragma once

#include <weft/launch/rendezvous.hpp>

#include <cstring>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::launch {

WEFT_INLINE ListeningSocket::ListeningSocket() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
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

WEFT_INLINE c10::intrusive_ptr<c10d::Store> ListeningSocket::serve() {
  c10d::TCPStoreOptions options;
  options.port = port_;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = std::exchange(descriptor_, -1);
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

WEFT_INLINE c10::intrusive_ptr<c10d::Store> join_store(std::string const& host, std::uint16_t port,
                                                       std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.timeout = timeout;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace weft::launch
