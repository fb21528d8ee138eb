// model/reduced_gradients.ipp -- definitions of model/reduced_gradients.hpp.
#pragma once

#include <weft/model/reduced_gradients.hpp>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::model {

WEFT_INLINE void ReducedGradients::refuse(ModelState const& model) const {
  auto const first = [&](GradientState state) -> ParameterRow const* {
    for (auto const& group : optimizer_->param_groups())
      for (auto const& parameter : group.params())
        if (auto const index = model.table.index_of(parameter))
          if (auto const& row = model.table.rows()[*index]; model.table.gradient_state(row) == state) return &row;
    return nullptr;
  };
  auto const rank = model.session->ranks.global_rank;
  if (auto const* const row = first(GradientState::incomplete))
    fail<Error>("weft: rank ", rank, ": step: an exception left a backward pass before the gradient of ", row->name,
                " was complete: call zero_grad() and begin the step again");
  if (auto const* const row = first(GradientState::local_sum))
    fail<Error>("weft: rank ", rank, ": step: the gradient of ", row->name,
                " is a sum of this rank's passes under no_backward_sync, which none without it has reduced, so ranks "
                "would part: run the last pass of each step without the guard, or drop the sum by zero_grad(); under "
                "fabric.local_gradients(model) ranks step by their own");
}

}  // namespace weft::model
