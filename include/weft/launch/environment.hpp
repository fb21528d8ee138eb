// launch/environment.hpp -- joins ranks that somebody else started.
// In: what the environment tells. Out: the store where all meet, after options and environment were compared.
#pragma once

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <weft/core/error.hpp>
#include <weft/launch/cluster.hpp>
#include <weft/launch/launch_options.hpp>
#include <weft/launch/rendezvous.hpp>

namespace weft::inline v0::launch {

/// What the program asks for and what the launcher started must be one.
inline void compare(LaunchOptions const& options, Cluster const& cluster) {
  auto const& ranks = cluster.ranks;
  detail::check_place(cluster);
  if (!options.devices.is_auto() && options.devices.text() != "-1" &&
      options.devices.count(1 << 20) != ranks.local_world_size)
    fail<LaunchError>("weft: ", cluster.name, ": the program asks for devices = ", options.devices.text(),
                      ", the environment has ", ranks.local_world_size,
                      " ranks on this node; make them equal, or leave devices out");
  if (options.num_nodes != 1 && options.num_nodes != ranks.num_nodes)
    fail<LaunchError>("weft: ", cluster.name, ": the program asks for num_nodes = ", options.num_nodes,
                      ", the environment has ", ranks.num_nodes, "; make them equal, or leave num_nodes out");
}

/// Where ranks of one machine find the port of their store: a file that rank 0 writes.
class RendezvousPoint {
 public:
  explicit RendezvousPoint(std::string const& rendezvous) {
    std::string name = "weft-" + std::to_string(::getuid()) + "-";
    for (char const c : rendezvous) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    path_ = std::filesystem::temp_directory_path() / name;
  }
  ~RendezvousPoint() {
    std::error_code ignored;
    if (mine_) std::filesystem::remove(path_, ignored);
  }
  RendezvousPoint(RendezvousPoint const&) = delete;
  RendezvousPoint& operator=(RendezvousPoint const&) = delete;

  void tell(std::uint16_t port) {
    auto const draft = path_.string() + "." + std::to_string(::getpid());
    ::mode_t const before = ::umask(077);
    std::ofstream(draft) << port << ' ' << ::getpid() << '\n';
    ::umask(before);
    std::error_code error;
    std::filesystem::rename(draft, path_, error);
    if (error)
      fail<LaunchError>("weft: ranks of this machine meet by the file ", path_.string(),
                        ", which can't be written: ", error.message(), "; set MASTER_ADDR and MASTER_PORT");
    mine_ = true;
  }
  /// A file of a job that is over (its rank 0 is gone) or of another user is passed over.
  std::uint16_t find(std::chrono::milliseconds timeout) const {
    for (auto const until = std::chrono::steady_clock::now() + timeout; std::chrono::steady_clock::now() < until;
         std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
      struct stat about{};
      int port = 0;
      pid_t server = 0;
      if (::stat(path_.c_str(), &about) == 0 && about.st_uid == ::getuid() && std::ifstream(path_) >> port >> server &&
          (::kill(server, 0) == 0 || errno == EPERM))
        return static_cast<std::uint16_t>(port);
    }
    fail<LaunchError>("weft: rank 0 does not come: no ", path_.string(), " within ", timeout.count(),
                      " ms; did it start, and are all ranks on this machine? Else set MASTER_ADDR and MASTER_PORT");
  }

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

inline Rendezvous meet(Cluster const& cluster, std::chrono::milliseconds timeout) {
  auto const& ranks = cluster.ranks;
  Rendezvous rendezvous{.host = cluster.host, .port = cluster.port};
  if (cluster.host.empty()) {
    if (ranks.num_nodes > 1)
      fail<LaunchError>(
          "weft: ", cluster.name, ": ranks on ", ranks.num_nodes,
          " nodes, and nothing says where they meet; set MASTER_ADDR (rank 0's host) and MASTER_PORT for all of them");
    rendezvous.host = "127.0.0.1";
    rendezvous.point = std::make_shared<RendezvousPoint>(cluster.rendezvous);
    if (ranks.global_rank == 0) {
      ListeningSocket socket;
      rendezvous.port = socket.port();
      rendezvous.store = socket.serve();
      rendezvous.point->tell(rendezvous.port);
    } else {
      rendezvous.port = rendezvous.point->find(std::min<std::chrono::milliseconds>(timeout, std::chrono::minutes(5)));
    }
  } else if (ranks.global_rank == 0 && !cluster.agent_serves) {
    c10d::TCPStoreOptions options;
    options.port = rendezvous.port;
    options.isServer = true;
    options.waitWorkers = false;
    options.timeout = timeout;
    try {
      rendezvous.store = c10::make_intrusive<c10d::TCPStore>(rendezvous.host, options);
    } catch (std::exception const& error) {
      std::string const text = error.what();
      fail<LaunchError>("weft: ", cluster.name, ": rank 0 can't serve the store on ", rendezvous.host, ":",
                        rendezvous.port, ": ", text.substr(0, text.find('\n')),
                        "; choose a free port, and for MASTER_ADDR a name or address of rank 0's node");
    }
  }
  if (!rendezvous.store) try {
      rendezvous.store = join_store(rendezvous.host, rendezvous.port, timeout);
    } catch (std::exception const& error) {
      std::string const text = error.what();
      fail<LaunchError>("weft: ", cluster.name, ": rank ", ranks.global_rank, " of ", ranks.world_size,
                        " doesn't reach the store on ", rendezvous.host, ":", rendezvous.port, ": ",
                        text.substr(0, text.find('\n')),
                        "; did rank 0 start there? All ranks need its MASTER_ADDR and MASTER_PORT");
    }
  return rendezvous;
}

}  // namespace weft::launch
