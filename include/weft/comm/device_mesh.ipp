// comm/device_mesh.ipp -- definitions of comm/device_mesh.hpp.
#pragma once

#include <weft/comm/device_mesh.hpp>

#include <algorithm>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE DeviceMesh::DeviceMesh(int rank, int world_size) : rank_(rank), names_{"world"} {
  for (int other = 0; other < world_size; ++other) coordinates_.push_back({other});
  make_axes({});
}

WEFT_INLINE void DeviceMesh::make_axes(Names const& same_batch) {
  for (auto const& name : names_) {
    groups_.push_back({.name = name});
    auto const axis = groups_.size() - 1;
    auto const& own = coordinates_[static_cast<std::size_t>(rank_)];
    for (int other = 0; other < static_cast<int>(coordinates_.size()); ++other) {
      auto place = coordinates_[static_cast<std::size_t>(other)];
      place[axis] = own[axis];
      if (place == own) groups_.back().members.push_back(other);
    }
    groups_.back().coordinate = own[axis];
    if (std::find(same_batch.begin(), same_batch.end(), name) == same_batch.end()) data_axes_.push_back(name);
  }
  for (auto const& name : same_batch) static_cast<void>(group(name));  // an axis that the mesh has
  data_ = index_of(data_axes_);
}

WEFT_INLINE void DeviceMesh::connect(std::shared_ptr<Communicator> world, Connect connect_group) {
  if (is_connected()) return;
  world_ = std::move(world);
  connect_ = std::move(connect_group);
  for (auto& group : groups_) connect_one(group);
}

WEFT_INLINE void DeviceMesh::connect_one(Group& group) {
  if (group.name == "world")
    group.ranks = world_;  // also of one rank
  else if (group.size() > 1 && connect_)
    group.ranks = connect_(group.name, group.members);
}

WEFT_INLINE bool DeviceMesh::has(std::string_view name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

WEFT_INLINE std::string DeviceMesh::describe() const {
  std::string text;
  for (std::size_t axis = 0; axis < names_.size(); ++axis)
    text += core::message(axis == 0 ? "" : " x ", names_[axis], " ", groups_[axis].size());
  return text;
}

WEFT_INLINE std::shared_ptr<Communicator> const& DeviceMesh::axis(std::string_view name) const {
  auto const& found = group(name);
  if (!is_connected())
    fail<ConfigurationError>("weft: mesh ", describe(), ": the ranks along \"", name,
                             "\" are not connected yet; setup connects them, or session().connect_mesh() on all ranks");
  return found.ranks;
}

WEFT_INLINE auto DeviceMesh::group(std::string_view name) const -> Group const& {
  auto const found = std::find_if(groups_.begin(), groups_.end(), [&](Group const& each) { return each.name == name; });
  if (found == groups_.end())
    fail<ConfigurationError>("weft: mesh ", describe(), " has no axis \"", name, "\": name one that it has");
  return *found;
}

WEFT_INLINE std::size_t DeviceMesh::index_of(Names const& axes) {
  Group wanted;
  std::vector<bool> varies(names_.size(), false);
  for (std::size_t axis = 0; axis < names_.size(); ++axis) {
    varies[axis] = std::find(axes.begin(), axes.end(), names_[axis]) != axes.end();
    if (varies[axis]) wanted.name += (wanted.name.empty() ? "" : " x ") + names_[axis];
  }
  for (auto const& name : axes) static_cast<void>(group(name));
  auto const& own = coordinates_[static_cast<std::size_t>(rank_)];
  for (int other = 0; other < static_cast<int>(coordinates_.size()); ++other) {
    auto const& place = coordinates_[static_cast<std::size_t>(other)];
    bool together = true;
    for (std::size_t axis = 0; axis < names_.size(); ++axis)
      together = together && (varies[axis] || place[axis] == own[axis]);
    if (!together) continue;
    if (other == rank_) wanted.coordinate = wanted.size();
    wanted.members.push_back(other);
  }
  // An axis' own group serves where all others that are named have one rank.
  auto const same = [&](Group const& group) { return group.members == wanted.members; };
  for (std::size_t axis = 0; axis < names_.size(); ++axis)
    if (varies[axis] && same(groups_[axis])) return axis;
  if (auto const found = std::find_if(groups_.begin() + static_cast<std::ptrdiff_t>(names_.size()), groups_.end(),
                                      same);
      found != groups_.end())
    return static_cast<std::size_t>(found - groups_.begin());
  if (wanted.members.size() == coordinates_.size()) wanted.name = "world";
  if (is_connected()) connect_one(wanted);
  groups_.push_back(std::move(wanted));
  return groups_.size() - 1;
}

WEFT_INLINE auto DeviceMesh::flattened(Names const& axes) -> Group const& { return groups_[index_of(axes)]; }

WEFT_INLINE std::vector<std::shared_ptr<Communicator>> DeviceMesh::groups() const {
  std::vector<std::shared_ptr<Communicator>> all;
  for (auto const& group : groups_) all.push_back(group.ranks);
  return all;
}

WEFT_INLINE void DeviceMesh::replace_groups(std::vector<std::shared_ptr<Communicator>> const& groups) {
  for (std::size_t i = 0; i < groups.size(); ++i) groups_[i].ranks = groups[i];
}

WEFT_INLINE void DeviceMesh::close() {
  for (auto& group : groups_) group.ranks.reset();
  world_.reset();
  connect_ = [](std::string const&, std::vector<int> const&) { return nullptr; };
}

}  // namespace weft::comm
