// launch/sessions.hpp -- how a process comes to its session.
// In: launch options, and what the policies say of device and backend. Out: the session of one process, or of one rank among others.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <weft/comm/communicator.hpp>
#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/devices.hpp>
#include <weft/launch/environment.hpp>
#include <weft/launch/options.hpp>

namespace weft::launch {

/// What the policies of a Fabric mean for its ranks, as values: what makes sessions of them is compiled once, not once a Fabric.
struct Machine {
  int (*accelerators)();
  comm::Connect connect;
};
template <class Device, comm::BackendPolicy Backend>
inline constexpr Machine machine_v{&accelerators<Device>, &comm::connect<Backend>};

inline std::shared_ptr<comm::Session> single_session(Machine const& machine, LaunchOptions const& options) {
  int const accelerators = machine.accelerators();
  if (!options.devices.is_auto() && options.devices.count(accelerators) != 1)
    fail<LaunchError>("weft: SingleDevice runs one process, but devices = ", options.devices.text(), "; write DDP<> for several, or devices = 1");
  if (options.num_nodes != 1) fail<LaunchError>("weft: SingleDevice runs on one node, but num_nodes = ", options.num_nodes, "; write DDP<> for several");
  auto session = std::make_shared<comm::Session>();
  session->device = device_of(accelerators, options.devices.index(0));
  return session;
}

inline std::shared_ptr<comm::Session> joined_session(Machine const& machine, LaunchOptions const& options, comm::RankInfo const& ranks, int accelerators,
                                                     c10::intrusive_ptr<c10d::Store> store, std::string interface_address) {
  if (accelerators > 0)
    fail<ConfigurationError>("weft: several processes on CUDA need the backend Nccl, which is not built yet; write On<Cpu>, or SingleDevice");
  auto session = std::make_shared<comm::Session>();
  session->ranks = ranks;
  session->device = device_of(accelerators, options.devices.index(ranks.local_rank));
  session->connect_world({std::move(store), ranks.global_rank, ranks.world_size, options.collective_timeout, std::move(interface_address), options.check_collectives}, machine.connect);
  return session;
}

inline std::shared_ptr<comm::Session> environment_session(Machine const& machine, LaunchOptions const& options) {
  auto const ranks = ranks_from_environment(options);
  int const accelerators = machine.accelerators();
  return joined_session(machine, options, ranks, accelerators, store_from_environment(ranks, options.collective_timeout),
                        ranks.num_nodes == 1 ? "127.0.0.1" : "");
}

}  // namespace weft::launch
