// model/model.ipp -- definitions of model/model.hpp.
#pragma once

#include <weft/model/model.hpp>

#include <weft/core/build.hpp>
#include <weft/unit/activity.hpp>

namespace weft::inline v0::model {

WEFT_INLINE ModelState::~ModelState() {
  if (module) unit::release(*module, activity);
  if (!is_registered_) return;
  reset_activations(*module);
  core::process_wide<SetUp>([this](SetUp& modules) { return modules.erase(module.get()); });
}

}  // namespace weft::model
