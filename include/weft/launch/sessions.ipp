// launch/sessions.ipp -- definitions of launch/sessions.hpp.
#pragma once

#include <weft/launch/sessions.hpp>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <weft/comm/communicator.hpp>
#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/arrivals.hpp>
#include <weft/launch/devices.hpp>
#include <weft/launch/rendezvous.hpp>
#include <weft/launch/watchdog.hpp>

namespace weft::inline v0::launch {

WEFT_INLINE std::shared_ptr<comm::Session> single_session(Machine const& machine, LaunchOptions const& options,
                                                          bool several_devices) {
  int const accelerators = machine.accelerators();
  int const devices = several_devices || !options.devices.is_auto() ? options.devices.count(accelerators) : 1;
  if (!several_devices && devices != 1)
    fail<LaunchError>("weft: SingleDevice runs one process, but devices = ", options.devices.text(),
                      "; write DDP<> for several, or devices = 1");
  if (options.num_nodes != 1)
    fail<LaunchError>("weft: ", several_devices ? "DataParallel" : "SingleDevice",
                      " runs on one node, but num_nodes = ", options.num_nodes, "; write DDP<> for several");
  if (accelerators > 0 && !at::hasCUDA())
    fail<LaunchError>("weft: this node shows ", accelerators,
                      " CUDA device(s), but the program has no CUDA in it: link libtorch_cuda and libc10_cuda, with "
                      "-Wl,--no-as-needed so that the linker "
                      "keeps them (weft's Meson dependency does), or write On<Cpu>");
  auto session = std::make_shared<comm::Session>();
  session->devices.clear();
  for (int i = 0; i < devices; ++i) session->devices.push_back(device_of(accelerators, options.devices.index(i)));
  session->device = session->devices.front();
  return session;
}

WEFT_INLINE void share_cores(int local_world_size) {
  if (local_world_size < 2 || std::getenv("OMP_NUM_THREADS")) return;
  int const share = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / local_world_size);
  if (at::get_num_threads() > share) at::set_num_threads(share);
}

WEFT_INLINE std::shared_ptr<comm::Session> joined_session(Machine const& machine, LaunchOptions const& options,
                                                          comm::RankInfo const& ranks, int accelerators,
                                                          c10::intrusive_ptr<c10d::Store> store,
                                                          std::string interface_address) {
  if (!options.interface.empty())
    interface_address = options.interface;
  else if (char const* const name = std::getenv("GLOO_SOCKET_IFNAME"); name && *name)  // c10d reads it in Python alone
    interface_address = name;
  share_cores(ranks.local_world_size);
  auto session = std::make_shared<comm::Session>();
  session->ranks = ranks;
  session->device = device_of(accelerators, options.devices.index(ranks.local_rank));
  session->devices = {session->device};
  arrive(*session,
         {std::move(store), ranks.global_rank, ranks.world_size, options.collective_timeout,
          std::move(interface_address), options.check_collectives},
         machine.connect);
  return session;
}

WEFT_INLINE std::shared_ptr<comm::Session> cluster_session(Machine const& machine, LaunchOptions const& options,
                                                           Cluster const& cluster) {
  open_standard_streams();
  check_times(options);
  compare(options, cluster);
  int const accelerators = machine.accelerators();
  auto rendezvous = meet(cluster, options.rendezvous_timeout);
  // Attempts of one job may share an agent's store, and so may launches of one program: each has keys of its own.
  auto const keys = "weft/attempt " + std::to_string(cluster.attempt) + "/launch " + std::to_string(next_launch());
  auto const own_keys = [&](c10::intrusive_ptr<c10d::Store> store) -> c10::intrusive_ptr<c10d::Store> {
    return c10::make_intrusive<c10d::PrefixStore>(keys, std::move(store));
  };
  auto const store = own_keys(rendezvous.store);
  Roll const roll(store, cluster.name, cluster.ranks);
  if (roll.is_closed())
    fail<LaunchError>("weft: ", cluster.name, ": rank ", cluster.ranks.global_rank, " of ", cluster.ranks.world_size,
                      " finds on ", rendezvous.host, ":", rendezvous.port,
                      " the store of a job whose ranks have all come; choose a free MASTER_PORT, and give each process "
                      "a rank of its own");
  auto watchdog = std::make_shared<Watchdog>(
      own_keys(join_store(rendezvous.host, rendezvous.port, options.rendezvous_timeout)), cluster.ranks,
      options.silence_timeout, cluster.parent_is_launcher);
  try {
    if (!roll.wait(options.rendezvous_timeout)) {
      watchdog->leaving();  // or the first to say it would end the others by its message
      roll.refuse();
    }
    auto session = joined_session(machine, options, cluster.ranks, accelerators, store,
                                  cluster.ranks.num_nodes == 1 ? "127.0.0.1" : "");
    session->attempt = cluster.attempt;
    session->failure_monitor = std::move(watchdog);
    return session;  // all are here, so the rendezvous point has done its work, and goes: a rank that is killed later
                     // leaves no file
  } catch (...) {
    report_failure(*watchdog, cluster.ranks);
    throw;
  }
}

}  // namespace weft::launch
