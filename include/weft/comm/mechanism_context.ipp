// comm/mechanism_context.ipp -- definitions of comm/mechanism_context.hpp.
#pragma once

#include <weft/comm/mechanism_context.hpp>

#include <algorithm>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0 {

WEFT_INLINE bool MechanismContext::has(std::string_view axis) const {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

WEFT_INLINE std::shared_ptr<comm::Communicator> MechanismContext::axis(std::string_view name) const {
  if (!has(name))
    fail<ConfigurationError>("weft: setup: a mechanism asks for the axis \"", name, "\" of the mesh ",
                             mesh().describe(), mesh().has(name) ? ", which another mechanism has taken" : "",
                             "; write a mesh with such an axis beside the strategy, Mesh<Axis<\"", name,
                             "\", n>, ...>");
  return mesh().axis(name);
}

WEFT_INLINE int MechanismContext::size(std::string_view name) const {
  auto const group = axis(name);
  return group ? group->size() : 1;
}

WEFT_INLINE std::shared_ptr<comm::Communicator> MechanismContext::ranks() const {
  return session.ranks.world_size == 1 ? session.world : mesh().flattened(axes).ranks;
}

WEFT_INLINE MechanismContext MechanismContext::without(std::string_view axis) const {
  auto rest = *this;
  std::erase(rest.axes, axis);
  return rest;
}

}  // namespace weft
