// fabric/collectives.hpp -- what ranks do together, on the values that a training loop holds.
// In: a Fabric's session. Out: its all_reduce, all_gather, broadcast, decisions, barrier, and the group itself.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <weft/comm/communicator.hpp>
#include <weft/comm/device_mesh.hpp>
#include <weft/comm/values.hpp>
#include <weft/core/error.hpp>
#include <weft/core/visit.hpp>
#include <weft/launch/transfer.hpp>
#include <weft/plan/grid.hpp>

namespace weft::inline v0::fabric {

/// The part of Fabric that is Derived's collectives. All ranks call alike.
template <class Derived>
class Collectives {
 public:
  /// Tensors, numbers, and containers of them, reduced over all ranks. The input is not changed; no gradient flows.
  template <class T>
  T all_reduce(T value, ReduceOp op = ReduceOp::average) {
    return comm::reduced(fabric().session().world.get(), std::move(value), op);
  }
  /// Tensors gain a first dimension, one entry per rank, also in a world of one; a number becomes a vector.
  template <class T>
  auto all_gather(T value) {
    return comm::gathered(fabric().session().world.get(), std::move(value));
  }
  /// The value of rank `source`: numbers, strings, tensors, and containers of them; others may pass anything of the
  /// type.
  template <launch::Transferable T>
  T broadcast(T const& value, int source = 0) {
    auto const& world = fabric().session().world;
    if (source < 0 || source >= fabric().world_size())
      fail<CommunicationError>("weft: broadcast: source ", source, " is not a rank; write 0 to ",
                               fabric().world_size() - 1);
    if (!world) return value;
    auto received = launch::from_bytes<T>(comm::broadcast_bytes(
        *world, world->rank() == source || Derived::simulates ? launch::to_bytes(value) : std::string(), source));
    if constexpr (is_visitable_v<at::Tensor, T>) return fabric().to_device(std::move(received));
    return received;
  }
  /// Every rank's tensor, in rank order; shapes may differ. No gradient flows.
  std::vector<at::Tensor> all_gather_uneven(at::Tensor const& tensor) {
    auto const& world = fabric().session().world;
    return world ? world->all_gather_uneven(tensor)
                 : std::vector<at::Tensor>{tensor.detach().clone(at::MemoryFormat::Contiguous)};
  }
  /// Whether every rank says yes, and whether one does: ranks that decide by it decide alike.
  bool all_of(bool decision) { return all_reduce(decision ? 1 : 0, ReduceOp::min) == 1; }
  bool any_of(bool decision) { return all_reduce(decision ? 1 : 0, ReduceOp::max) == 1; }
  /// Returns when all ranks are here; an error on those that waited longer than `limit` (0: than
  /// LaunchOptions::collective_timeout).
  void barrier(std::chrono::milliseconds limit = {}) {
    auto const& world = fabric().session().world;
    if (!world) return;
    comm::Communicator::TimeLimit const until(*world, limit);
    world->barrier();
  }
  /// All ranks as a group, for what is not above: scatter, gather, all_to_all, messages, asynchronous calls.
  std::shared_ptr<comm::Communicator> const& world() const {
    if (!fabric().session().world)
      fail<CommunicationError>(
          "weft: world: SingleDevice has one process and no group of ranks; write DDP<> or another strategy with "
          "several, also for one rank");
    return fabric().session().world;
  }
  /// The ranks along named axes: those of the Mesh<...> of this Fabric, else one axis, "world". Groups are there once a
  /// model has been set up.
  comm::DeviceMesh& mesh() const {
    using Composed = typename Derived::composition;
    auto& here = fabric().session();
    if (here.mesh) return *here.mesh;
    auto const rank = here.ranks.global_rank, world_size = here.ranks.world_size;
    if constexpr (Composed::mesh::num_axes == 0)
      return here.mesh.emplace(rank, world_size);
    else {
      comm::DeviceMesh::Names same_batch;
      for (auto const axis : Derived::mechanism::same_batch) same_batch.emplace_back(axis);
      return here.mesh.emplace(resolve<typename Composed::mesh>(world_size), rank, same_batch);
    }
  }

 private:
  friend Derived;
  Collectives() = default;
  Derived& fabric() { return static_cast<Derived&>(*this); }
  Derived const& fabric() const { return static_cast<Derived const&>(*this); }
};

}  // namespace weft::fabric
