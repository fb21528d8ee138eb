// launch/rendezvous.ipp -- definitions of launch/rendezvous.hpp.
#pragma once

#include <weft/launch/rendezvous.hpp>

#include <algorithm>
#include <cstring>
#include <optional>

#include <resolv.h>

#include <c10/util/Logging.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::launch {

#if defined(__GLIBC__)
WEFT_INLINE WithoutNameServers::WithoutNameServers() {
  if (!(_res.options & RES_INIT)) ::res_init();
  servers_ = std::exchange(_res.nscount, 0);
  constexpr int errors_only = 2;
  log_level_ = std::exchange(FLAGS_caffe2_log_level, std::max<int>(FLAGS_caffe2_log_level, errors_only));
}
WEFT_INLINE WithoutNameServers::~WithoutNameServers() {
  _res.nscount = servers_;
  FLAGS_caffe2_log_level = log_level_;
}
#else
WEFT_INLINE WithoutNameServers::WithoutNameServers() {}
WEFT_INLINE WithoutNameServers::~WithoutNameServers() {}
#endif

WEFT_INLINE bool is_this_node(std::string const& host) { return host == "localhost" || host == "127.0.0.1"; }

WEFT_INLINE bool is_address(std::string const& host) {
  in6_addr address{};
  return is_this_node(host) || ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

WEFT_INLINE ListeningSocket::ListeningSocket(std::uint16_t port)
    : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  int const again = 1;  // also where an earlier job's connections to this port are still being closed
  ::setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &again, sizeof again);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (descriptor_ < 0 || ::bind(descriptor_, generic, length) != 0 || ::listen(descriptor_, 1024) != 0 ||
      ::getsockname(descriptor_, generic, &length) != 0)
    fail<LaunchError>("weft: no socket for the ranks to meet on", port != 0 ? " at port " + std::to_string(port) : "",
                      ": ", std::strerror(errno));
  port_ = ntohs(address.sin_port);
}

WEFT_INLINE c10::intrusive_ptr<c10d::Store> ListeningSocket::serve() {
  c10d::TCPStoreOptions options;
  options.port = port_;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = std::exchange(descriptor_, -1);
  WithoutNameServers const own_host;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

WEFT_INLINE c10::intrusive_ptr<c10d::Store> join_store(std::string const& host, std::uint16_t port,
                                                       std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.timeout = timeout;
  options.waitWorkers = false;
  std::optional<WithoutNameServers> no_names;
  if (is_address(host)) no_names.emplace();
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace weft::launch
