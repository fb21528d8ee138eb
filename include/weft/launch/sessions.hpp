// launch/sessions.hpp -- how a process comes to its session.
// In: launch options, and what the policies say of device and backend. Out: the session of one process, or of one rank
// among others.
#pragma once

#include <atomic>
#include <concepts>
#include <memory>
#include <string>
#include <type_traits>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <weft/comm/session.hpp>
#include <weft/launch/devices.hpp>
#include <weft/launch/environment.hpp>
#include <weft/launch/launch_options.hpp>
#include <weft/strategy/machine.hpp>

namespace weft::inline v0::launch {

/// What the policies of a Fabric mean for its ranks, as values: what makes sessions of them is compiled once, not once
/// a Fabric.
struct Machine {
  int (*accelerators)();
  comm::Connect connect;
};
template <class Device, comm::Connect connect>
inline constexpr Machine machine_v{&accelerators<Device>, connect};

/// One process, on one device or on all that it was given.
std::shared_ptr<comm::Session> single_session(Machine const& machine, LaunchOptions const& options,
                                              bool several_devices = false);

/// Ranks of one node share its cores, unless OMP_NUM_THREADS says how: LibTorch would give all of them to each.
void share_cores(int local_world_size);

std::shared_ptr<comm::Session> joined_session(Machine const& machine, LaunchOptions const& options,
                                              comm::RankInfo const& ranks, int accelerators,
                                              c10::intrusive_ptr<c10d::Store> store, std::string interface_address);

/// A launcher policy that joins ranks: Environment, or a user's own with a cluster() (launch/cluster.hpp).
template <class Launcher>
inline constexpr bool joins_ranks_v = std::is_same_v<Launcher, Environment> || requires(Variables const& variables) {
  { Launcher::cluster(variables) } -> std::convertible_to<Cluster>;
};
template <class Launcher>
Cluster cluster_of(Variables const& variables) {
  if constexpr (std::is_same_v<Launcher, Environment>)
    return environment_cluster(variables);
  else
    return Launcher::cluster(variables);
}

/// How many launches there were before, in all shared objects of the process.
[[gnu::visibility("default")]] inline int next_launch() {
  static std::atomic<int> launches = 0;
  return launches++;
}

std::shared_ptr<comm::Session> cluster_session(Machine const& machine, LaunchOptions const& options,
                                               Cluster const& cluster);

}  // namespace weft::launch

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/sessions.ipp>
#endif
