// comm/mechanism_context.hpp -- what a mechanism is told of the job that it works in.
// In: the session, its device mesh, and the axes that are left. Out: the mechanism's process groups, and the context of
// the mechanism inside.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <weft/comm/communicator.hpp>
#include <weft/comm/device_mesh.hpp>
#include <weft/comm/session.hpp>
#include <weft/strategy/precision.hpp>

namespace weft::inline v0 {

/// Given to a mechanism when it sets a model up (strategy/mechanism.hpp). A mechanism takes its ranks from here alone.
struct MechanismContext {
  comm::Session& session;
  PrecisionConfig precision{};
  std::vector<std::string> axes{};  // those that no mechanism around this one has taken, outermost first

  comm::DeviceMesh& mesh() const { return *session.mesh; }
  bool has(std::string_view axis) const;

  /// The group of one of its axes; null if that has one rank. An error for an axis that is not its own.
  std::shared_ptr<comm::Communicator> axis(std::string_view name) const;
  int size(std::string_view name) const;
  /// All of its axes as one group; null if they have one rank together. Where all ranks of the job are meant, it is
  /// there for one rank, too, if the strategy has processes. Collective if it is asked for such a set of axes first.
  std::shared_ptr<comm::Communicator> ranks() const;

  /// For the mechanism inside: all axes but this one.
  MechanismContext without(std::string_view axis) const;
};

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/mechanism_context.ipp>
#endif
