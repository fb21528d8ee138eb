// estimates/shape_of.ipp -- definitions of estimates/shape_of.hpp.
#pragma once

#include <weft/estimates/shape_of.hpp>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/shard/dtypes.hpp>

namespace weft::inline v0::estimates {

WEFT_INLINE ModelShape shape_of(torch::nn::Module& model, shard::Wrapping const& wrapping,
                                std::size_t optimizer_states) {
  auto const table = model::ParameterTable::of(model);
  ModelShape shape{.optimizer_states = optimizer_states};
  auto const with_statistics = shard::parameters_with_statistics(model);
  model::ParameterRow const* first = nullptr;
  for (auto const& unit : shard::Wrapper(model, table, wrapping).units()) {
    auto& known =
        shape.units.emplace_back(UnitShape{.parent = unit.parent, .before_inner = unit.before_inner.value_or(0)});
    for (auto const index : unit.rows) {
      auto const& row = table.rows()[index];
      if (!first) first = &row;
      if (row.dtype != first->dtype)
        fail<ConfigurationError>("weft: shape_of: parameter ", first->name, " is ", first->dtype, " and ", row.name,
                                 " is ", row.dtype, ": an estimate is of numbers of one width");
      known.parameters.push_back(
          {row.global_numel(), row.trainable, with_statistics.contains(row.tensor.unsafeGetTensorImpl())});
    }
  }
  if (first) shape.element_bytes = first->tensor.element_size();
  return shape;
}

}  // namespace weft::estimates
