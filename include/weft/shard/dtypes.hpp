// shard/dtypes.hpp -- in which dtypes a sharded parameter computes and its gradients travel.
// In: a parameter as it is kept, and the config of the precision. Out: the two dtypes by which groups differ.
#pragma once

#include <compare>
#include <unordered_set>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <weft/precision/rules.hpp>
#include <weft/strategy/precision.hpp>

namespace weft::inline v0::shard {

using precision::dtype_of;

/// Of a group of parameters, beside the dtype that they are kept in.
struct Dtypes {
  at::ScalarType computed;  // gathered, and seen by forward
  at::ScalarType reduced;   // of gradients while they are added up over ranks
  auto operator<=>(Dtypes const&) const = default;
};

/// [Note: what a precision casts] A config that computes in what it stores casts nothing: the module was converted
/// before, and a parameter that has another dtype all the same was given it on purpose, and is reduced in it. A config
/// that computes in something else casts every floating parameter, except those of a layer that keeps statistics.
Dtypes dtypes_of(at::ScalarType kept, bool has_statistics, PrecisionConfig const& config);

/// Of layers whose statistics forward updates; see [Note: layers that keep statistics].
std::unordered_set<at::TensorImpl*> parameters_with_statistics(torch::nn::Module& model);

}  // namespace weft::shard

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/shard/dtypes.ipp>
#endif
