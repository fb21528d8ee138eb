// model/equal_start.hpp -- all ranks begin with rank 0's values.
// In: a model per rank. Out: the same parameters and buffers everywhere, or an error that names the first difference.
#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <weft/comm/communicator.hpp>
#include <weft/model/parameter_table.hpp>

namespace weft::inline v0::model {

/// Refuses, on all ranks alike, models that differ in a parameter's or buffer's name, shape, dtype or trainability.
void require_equal_models(comm::Communicator& ranks, torch::nn::Module const& model, ParameterTable const& table);

/// Copies rank 0's tensor to every rank, for memory that goes right after it. A backend's thread lets go of what it has
/// sent a little later than the call returns, so it gets a tensor that owns nothing once all is well.
void broadcast_once(comm::Communicator& ranks, at::Tensor const& tensor);

/// Copies rank 0's parameters and buffers to every rank, except those that have no memory yet. Small ones travel
/// together, 128 KiB at a time: what is flattened comes on top of the whole model, the largest thing that setup holds.
void broadcast_model(comm::Communicator& ranks, torch::nn::Module const& model, ParameterTable const& table);

}  // namespace weft::model

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/model/equal_start.ipp>
#endif
