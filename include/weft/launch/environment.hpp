// launch/environment.hpp -- joins ranks that somebody else started.
// In: what the environment tells. Out: the store where all meet, after options and environment were compared.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
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

  /// Writes the port of this rank 0, and returns it, or that of another rank 0 of the same job, which came first.
  std::uint16_t tell(std::uint16_t port);
  /// Writes it whoever came first.
  void take(std::uint16_t port);
  /// Whether another rank 0 of this node says within this time that it serves this point's store.
  bool served_by_other(std::chrono::milliseconds timeout) const;
  /// A file of a job that is over (its rank 0 is gone) or of another user is passed over.
  std::uint16_t find(std::chrono::milliseconds timeout) const;

 private:
  std::string draft(std::uint16_t port) const;
  /// 0: there is none, or its process is gone.
  std::uint16_t read(bool also_mine) const;

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

/// [Note: a store outlives its launch] A program that launches twice meets twice on one port, and ranks come to the
/// second launch while others still hold the first one's store: rank 0 serves one store for all launches, each of which
/// has keys of its own. It is left to the end of the process. tests/launch/environment_jobs.cpp
struct ServedStore {
  pid_t process;  // a forked child has the store, but not its thread
  c10::intrusive_ptr<c10d::Store> store;
};
[[gnu::visibility("default")]] inline std::map<std::uint16_t, ServedStore>& served_stores() {
  static auto* const stores = new std::map<std::uint16_t, ServedStore>;  // by port
  return *stores;
}

Rendezvous meet(Cluster const& cluster, std::chrono::milliseconds timeout);

}  // namespace weft::launch

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/environment.ipp>
#endif
