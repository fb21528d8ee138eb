// launch/environment.ipp -- definitions of launch/environment.hpp.
#pragma once

#include <weft/launch/environment.hpp>

#include <cerrno>
#include <csignal>
#include <exception>
#include <fstream>
#include <optional>
#include <thread>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/arrivals.hpp>
#include <weft/launch/rendezvous.hpp>

namespace weft::inline v0::launch {

WEFT_INLINE void compare(LaunchOptions const& options, Cluster const& cluster) {
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

WEFT_INLINE RendezvousPoint::RendezvousPoint(std::string const& rendezvous) {
  std::string name = "weft-" + std::to_string(::getuid()) + "-";
  for (char const c : rendezvous) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  path_ = std::filesystem::temp_directory_path() / name;
}

WEFT_INLINE std::string RendezvousPoint::draft(std::uint16_t port) const {
  auto const draft = path_.string() + "." + std::to_string(::getpid());
  ::mode_t const before = ::umask(077);
  std::ofstream(draft) << port << ' ' << ::getpid() << '\n';
  ::umask(before);
  return draft;
}

WEFT_INLINE std::uint16_t RendezvousPoint::tell(std::uint16_t port) {
  auto const text = draft(port);
  if (::link(text.c_str(), path_.c_str()) == 0) {
    ::unlink(text.c_str());
    mine_ = true;
    return port;
  }
  if (auto const other = read(false)) {
    ::unlink(text.c_str());
    return other;
  }
  take(port);
  return port;
}

WEFT_INLINE void RendezvousPoint::take(std::uint16_t port) {
  std::error_code error;
  std::filesystem::rename(draft(port), path_, error);
  if (error)
    fail<LaunchError>("weft: ranks of this machine meet by the file ", path_.string(),
                      ", which can't be written: ", error.message(), "; set MASTER_ADDR and MASTER_PORT");
  mine_ = true;
}

WEFT_INLINE std::uint16_t RendezvousPoint::read(bool also_mine) const {
  struct stat about{};
  int port = 0;
  pid_t server = 0;
  if (::stat(path_.c_str(), &about) == 0 && about.st_uid == ::getuid() && std::ifstream(path_) >> port >> server &&
      (also_mine || server != ::getpid()) && (::kill(server, 0) == 0 || errno == EPERM))
    return static_cast<std::uint16_t>(port);
  return 0;
}

WEFT_INLINE bool RendezvousPoint::served_by_other(std::chrono::milliseconds timeout) const {
  for (auto const until = std::chrono::steady_clock::now() + timeout; std::chrono::steady_clock::now() < until;
       std::this_thread::sleep_for(std::chrono::milliseconds(5)))
    if (read(false)) return true;
  return false;
}

WEFT_INLINE std::uint16_t RendezvousPoint::find(std::chrono::milliseconds timeout) const {
  for (auto const until = std::chrono::steady_clock::now() + timeout; std::chrono::steady_clock::now() < until;
       std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
    if (auto const port = read(true)) return port;
  }
  fail<LaunchError>("weft: rank 0 does not come: no ", path_.string(), " within ", timeout.count(),
                    " ms; did it start, and are all ranks on this machine? Else set MASTER_ADDR and MASTER_PORT");
}

namespace detail {

/// The store of the rank 0 that came first: this process is a second one, which the roll will tell.
WEFT_INLINE c10::intrusive_ptr<c10d::Store> store_of_first_rank_0(std::string const& host, std::uint16_t port,
                                                                  std::chrono::milliseconds timeout) {
  try {
    auto store = join_store(host, port, std::min<std::chrono::milliseconds>(timeout, std::chrono::seconds(2)));
    store->setTimeout(timeout);
    return store;
  } catch (std::exception const&) {
    return nullptr;
  }
}

}  // namespace detail

WEFT_INLINE Rendezvous meet(Cluster const& cluster, std::chrono::milliseconds timeout) {
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
      if (auto const first = rendezvous.point->tell(rendezvous.port); first != rendezvous.port) {
        if (auto store = detail::store_of_first_rank_0(rendezvous.host, first, timeout)) {
          rendezvous.store = std::move(store);
          rendezvous.port = first;
        } else {
          rendezvous.point->take(rendezvous.port);
        }
      }
    } else {
      rendezvous.port = rendezvous.point->find(std::min<std::chrono::milliseconds>(timeout, std::chrono::minutes(5)));
    }
  } else if (auto const served = served_stores().find(cluster.port); ranks.global_rank == 0 && !cluster.agent_serves &&
                                                                     served != served_stores().end() &&
                                                                     served->second.process == ::getpid()) {
    rendezvous.store = served->second.store;
    rendezvous.store->setTimeout(timeout);
  } else if (ranks.global_rank == 0 && !cluster.agent_serves) {
    // Who finds the port taken looks here for whether a rank 0 of weft has it.
    rendezvous.point = std::make_shared<RendezvousPoint>("port " + std::to_string(rendezvous.port));
    c10d::TCPStoreOptions options;
    options.port = rendezvous.port;
    options.isServer = true;
    options.waitWorkers = false;
    options.timeout = timeout;
    try {
      if (is_this_node(rendezvous.host) && ranks.num_nodes == 1) {
        rendezvous.store = ListeningSocket(rendezvous.port).serve();
        rendezvous.store->setTimeout(timeout);
      } else {
        std::optional<WithoutNameServers> no_names;
        if (is_address(rendezvous.host)) no_names.emplace();
        rendezvous.store = c10::make_intrusive<c10d::TCPStore>(rendezvous.host, options);
      }
      served_stores()[cluster.port] = {::getpid(), rendezvous.store};
      try {
        rendezvous.point->take(rendezvous.port);
      } catch (LaunchError const&) {  // a machine without a folder for it: who comes twice hears of the port alone
      }
    } catch (std::exception const& error) {
      if (rendezvous.point->served_by_other(std::chrono::seconds(1)))
        rendezvous.store = detail::store_of_first_rank_0(rendezvous.host, rendezvous.port, timeout);
      if (rendezvous.store) return rendezvous;
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
