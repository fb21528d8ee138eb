// model/cut.hpp -- a parameter's dims divided over the ranks of an axis.
// In: a row of the parameter table and how it is to lie on the axis. Out: this rank's part, and the row that says so.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include <weft/comm/mechanism_context.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/plan/placement.hpp>

namespace weft::inline v0::model {

/// What this rank keeps of `values`: a dense copy, never a view, with the order of memory that `values` have.
at::Tensor shard_of(at::Tensor const& values, Shard const& placement, int size, int coordinate);

/// Divides a parameter over an axis of the mechanism's own: writes the placement, and where the parameter has memory,
/// leaves this rank's part in it. One that has none gets it later, by the engine's take(). Refuses, on all ranks alike,
/// a dim that the parameter doesn't have. Local.
void cut(ParameterRow& row, std::string const& axis, Shard const& placement, MechanismContext const& context);

}  // namespace weft::model

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/model/cut.ipp>
#endif
