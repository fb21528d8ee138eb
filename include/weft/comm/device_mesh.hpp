// comm/device_mesh.hpp -- the ranks of a job along named axes.
// In: a grid of ranks, and who connects groups of them. Out: for each axis its size, this rank's coordinate and its
// process group; several axes as one.
//
//   Mesh<Axis<"data", 2>, Axis<"tensor", 2>>       tensor
//                                          data 0   0 1      rank 3: coordinate("data") is 1, axis("tensor") is {2, 3}
//                                               1   2 3              flattened({"data", "tensor"}) is the world
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/comm/communicator.hpp>
#include <weft/plan/grid.hpp>

namespace weft::inline v0::comm {

/// One for a session: its groups are made once, by all ranks in one order, and shared by all models.
class DeviceMesh {
 public:
  /// Some of the ranks, this one among them.
  struct Group {
    std::string name;                       // of the axis, or of all of its axes: "data x tensor"
    std::vector<int> members{};             // ranks of the world; this rank's place among them is its coordinate
    int coordinate = 0;                     // this rank's
    std::shared_ptr<Communicator> ranks{};  // null before connect(), after close(), and where there is one rank
    int size() const { return static_cast<int>(members.size()); }
  };
  using Names = std::vector<std::string>;
  /// Connects a group of members of the world; called by all ranks of the world at once.
  using Connect =
      std::function<std::shared_ptr<Communicator>(std::string const& name, std::vector<int> const& members)>;

  /// All ranks along one axis, "world".
  DeviceMesh(int rank, int world_size);
  /// Along the axes of a grid. `same_batch`: axes whose ranks work on one batch together (of tensor parallelism); the
  /// others are the data axes.
  template <std::size_t NumAxes>
  DeviceMesh(Grid<NumAxes> const& grid, int rank, Names const& same_batch = {}) : rank_(rank) {
    for (int other = 0; other < grid.world(); ++other) {
      auto const place = grid.coordinates(other);
      coordinates_.emplace_back(place.begin(), place.end());
    }
    for (auto const name : grid.names()) names_.emplace_back(name);
    make_axes(same_batch);
  }

  /// Makes the groups of all axes, and that of the data axes. `world`: the group of all ranks, null if there is none.
  /// Collective, at the first call; later ones do nothing.
  void connect(std::shared_ptr<Communicator> world, Connect connect_group);
  bool is_connected() const { return connect_ != nullptr; }

  Names const& names() const { return names_; }
  Names const& data_axes() const { return data_axes_; }
  bool has(std::string_view name) const;
  int size(std::string_view name) const { return group(name).size(); }
  int coordinate(std::string_view name) const { return group(name).coordinate; }
  /// "data 2 x tensor 4"
  std::string describe() const;

  /// The process group of an axis, or of several that were flattened, by its name; null if it has one rank. After
  /// connect().
  std::shared_ptr<Communicator> const& axis(std::string_view name) const;

  /// The ranks of several axes as one: all of them make the world. A group that is none of an axis, of the data axes
  /// and of the world is connected when it is first asked for: collective then.
  Group const& flattened(Names const& axes);
  /// Over the data axes: who has other batches.
  Group const& data() const { return groups_[data_]; }

  /// All groups that are connected. What is put in their place stays there until it is put back.
  std::vector<std::shared_ptr<Communicator>> groups() const;
  void replace_groups(std::vector<std::shared_ptr<Communicator>> const& groups);

  /// Leaves the groups.
  void close();

 private:
  Group const& group(std::string_view name) const;
  void make_axes(Names const& same_batch);
  /// By members: two sets of axes may have the same ranks, where others have one.
  std::size_t index_of(Names const& axes);
  void connect_one(Group& group);

  int rank_ = 0;
  std::vector<std::vector<int>> coordinates_;  // of each rank, along each axis
  Names names_;
  Names data_axes_;
  std::deque<Group> groups_;  // of the axes, in their order; then of several
  std::size_t data_ = 0;
  std::shared_ptr<Communicator> world_;
  Connect connect_;
};

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/device_mesh.ipp>
#endif
