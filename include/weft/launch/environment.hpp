// launch/environment.hpp -- joins ranks that somebody else started.
// In: what the environment tells. Out: the store where all meet, after options and environment were compared.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <weft/launch/cluster.hpp>
#include <weft/launch/launch_options.hpp>

namespace weft::inline v0::launch {

/// What the program asks for and what the launcher started must be one.
void compare(LaunchOptions const& options, Cluster const& cluster);

/// Where ranks of one machine find the port of their store: a file that rank 0 writes.
class RendezvousPoint {
 public:
  explicit RendezvousPoint(std::string const& rendezvous);
  ~RendezvousPoint() {
    std::error_code ignored;
    if (mine_) std::filesystem::remove(path_, ignored);
  }
  RendezvousPoint(RendezvousPoint const&) = delete;
  RendezvousPoint& operator=(RendezvousPoint const&) = delete;

  void tell(std::uint16_t port);
  /// A file of a job that is over (its rank 0 is gone) or of another user is passed over.
  std::uint16_t find(std::chrono::milliseconds timeout) const;

 private:
  std::filesystem::path path_;
  bool mine_ = false;
};

/// The store of a job, and this process's further connections to it.
struct Rendezvous {
  std::string host;
  std::uint16_t port = 0;
  c10::intrusive_ptr<c10d::Store> store{};  // the server's own where this rank serves it
  std::shared_ptr<RendezvousPoint> point{};
};

Rendezvous meet(Cluster const& cluster, std::chrono::milliseconds timeout);

}  // namespace weft::launch

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/environment.ipp>
#endif
