// launch/simulated.ipp -- definitions of launch/simulated.hpp.
#pragma once

#include <weft/launch/simulated.hpp>

#include <string>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/devices.hpp>

namespace weft::inline v0::launch {

WEFT_INLINE std::shared_ptr<comm::Session> simulated_session(Machine const& machine, int world,
                                                             LaunchOptions const& options) {
  if (!options.devices.is_auto() && options.devices.text() != std::to_string(world))
    fail<LaunchError>("weft: Simulated<", world, "> stands for ", world,
                      " ranks, but devices = ", options.devices.text(), "; write devices = ", world,
                      ", or leave it out");
  if (options.num_nodes != 1)
    fail<LaunchError>("weft: Simulated runs one rank in this process, but num_nodes = ", options.num_nodes,
                      "; leave it out");
  if (options.simulated_rank < 0 || options.simulated_rank >= world)
    fail<LaunchError>("weft: simulated_rank = ", options.simulated_rank, " is not a rank of Simulated<", world,
                      ">; write 0 to ", world - 1);
  auto session = std::make_shared<comm::Session>();
  session->ranks.global_rank = session->ranks.local_rank = options.simulated_rank;
  session->ranks.world_size = session->ranks.local_world_size = world;
  session->alone = true;
  session->device = device_of(machine.accelerators(), 0);
  session->devices = {session->device};
  session->connect_world(
      {c10::make_intrusive<c10d::HashStore>(), options.simulated_rank, world, options.collective_timeout, ""},
      machine.connect);
  return session;
}

}  // namespace weft::launch
