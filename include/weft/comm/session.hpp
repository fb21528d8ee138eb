// comm/session.hpp -- what one rank knows of the running job.
// In: the launcher's answer (ranks, device, store). Out: shared by the facade, its models and its optimizers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include <weft/comm/backend.hpp>
#include <weft/comm/communicator.hpp>
#include <weft/comm/device_mesh.hpp>
#include <weft/comm/rank_info.hpp>
#include <weft/comm/trace.hpp>

namespace weft::inline v0::comm {

/// Makes the communicator of a backend policy at an endpoint: connect<Backend>.
using Connect = std::shared_ptr<Communicator> (*)(Endpoint const&, std::shared_ptr<Recorder>, std::string axis,
                                                  at::Device);

/// Who sees to it that ranks end together, where no parent does.
class FailureMonitor {
 public:
  virtual ~FailureMonitor() = default;
  /// This rank leaves on purpose; from here on it doesn't mind that others are gone.
  virtual void leaving() noexcept = 0;
  /// This rank has failed; lost_peer: it only noticed that another one is gone.
  virtual void failed(std::string const& message, bool lost_peer) noexcept = 0;
  /// Prints why this rank failed; ranks that fail alike print it once, with all their names. Before failed().
  virtual void print(std::string const& message) noexcept = 0;
};

/// Shared ownership: wrapped models and optimizers may outlive the facade that made them.
struct Session {
  RankInfo ranks;
  at::Device device = at::kCPU;
  std::vector<at::Device> devices{
      at::kCPU};  // of this process: `device`, and where the strategy has several, the others
  std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
  std::shared_ptr<Communicator> world;  // what all processes do together; null where the strategy has one process
  std::optional<DeviceMesh> mesh;       // made by the facade, which knows its axes
  std::uint64_t seed = 0;               // what seed_everything was given; samplers start from it
  Endpoint endpoint;                    // where all ranks meet
  Connect connect_backend = nullptr;
  std::shared_ptr<FailureMonitor> failure_monitor;  // null where the launcher's parent keeps watch
  int attempt = 0;                                  // how often the launcher has started the job again
  bool alone = false;                               // the other ranks are simulated: nobody answers
  bool joined = false;                              // inside of a join: ranks that are through only answer steps

  /// Collective: all ranks call it.
  void connect_world(Endpoint where, Connect connect) {
    endpoint = std::move(where);
    endpoint.device = device;
    connect_backend = connect;
    world = connect_backend(endpoint, recorder, "world", device);
  }

  /// The ranks `members` of the world as a group of its own, this rank among them; ranks of the group are positions in
  /// the list. Collective: all members call it, with one list and in one order with their other groups.
  std::shared_ptr<Communicator> connect_group(std::string axis, std::vector<int> const& members) {
    return connect(std::move(axis), members, /*parent=*/nullptr);
  }
  /// The same where every rank of the world connects at once, each the group that it is in: an axis of a mesh. A
  /// backend may split the world's connection for it.
  std::shared_ptr<Communicator> connect_axis(std::string axis, std::vector<int> const& members) {
    return connect(std::move(axis), members, world.get());
  }
  /// The groups of the mesh, where there are several processes. Collective at the first call.
  void connect_mesh() {
    if (!mesh->is_connected())
      mesh->connect(world, world
                               ? DeviceMesh::Connect([this](std::string const& axis, std::vector<int> const& members) {
                                   return connect_axis(axis, members);
                                 })
                               : nullptr);
  }

 private:
  std::shared_ptr<Communicator> connect(std::string axis, std::vector<int> const& members, Communicator* parent);

  std::unordered_map<std::string, std::size_t>
      num_groups_;  // by members: a group connected again meets under a new name
};

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/session.ipp>
#endif
