// unit/activity.hpp -- a root knows its units.
// In: a root module and its activity. Out: units that know their path and refuse to run while the root doesn't.
#pragma once

#include <memory>
#include <string>

#include <torch/nn/module.h>

#include <weft/unit/hooks.hpp>
#include <weft/unit/reachable.hpp>
#include <weft/unit/root_activity.hpp>
#include <weft/unit/walk.hpp>

namespace weft::inline v0::unit {

// f(path, unit) for each unit in root, root included if it is one. A unit that is registered twice comes twice.
template <class F>
void for_each_unit(torch::nn::Module& root, F&& f) {
  for_each_module(root, [&](std::string const& path, torch::nn::Module& module) {
    if (auto* unit = dynamic_cast<UnitBase*>(&module)) f(path, *unit);
  });
}

// A few of the root's units, one of each type, for a message.
std::string known_units(torch::nn::Module& root);

// A unit that two roots share may run while either does.
inline void adopt(torch::nn::Module& root, std::shared_ptr<RootActivity> const& activity) {
  for_each_unit(root, [&](std::string const& path, UnitBase& unit) { unit.unit_adopt(path, activity); });
}

// Undoes adopt(root, activity); hooks stay.
inline void release(torch::nn::Module& root, std::shared_ptr<RootActivity> const& activity) {
  for_each_unit(root, [&](std::string const&, UnitBase& unit) { unit.unit_release(activity); });
}
// Undoes every adopt(root, ...).
inline void release(torch::nn::Module& root) {
  for_each_unit(root, [](std::string const&, UnitBase& unit) { unit.unit_release(); });
}

}  // namespace weft::unit

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/unit/activity.ipp>
#endif
