// model/clip.hpp -- clipping by the norm of the whole model.
// In: parameters, of which the table says how they are cut over ranks. Out: the norm that one process would have, and
// gradients scaled by it.
#pragma once

#include <vector>

#include <weft/comm/communicator.hpp>
#include <weft/comm/session.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/optim/clip.hpp>

namespace weft::inline v0::model {

/// Adds what the ranks along an axis have of a norm; see [Note: clipping in three parts] in optim/clip.hpp.
at::Tensor add_up(at::Tensor const& partial, double norm_type, comm::Communicator& ranks);

/// What clipping asks of a model.
struct Clipped {
  ParameterTable const* table;
  comm::Session const* session;
};

/// Of parameters of one model or several, whose norm is one, and equal on all ranks. Collective where parameters are
/// cut or ignored: every rank calls it. Gradients of ignored parameters are each rank's own: the largest norm that a
/// rank has of them counts.
at::Tensor clip(std::vector<Clipped> const& models, std::vector<at::Tensor> const& parameters, ClipNorm const& clip);

}  // namespace weft::model

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/model/clip.ipp>
#endif
