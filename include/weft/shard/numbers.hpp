// shard/numbers.hpp -- in which numbers a sharded parameter computes and its gradients travel.
// In: a parameter as it is kept, and the plan of the precision. Out: the two dtypes by which groups differ.
#pragma once

#include <compare>
#include <string>
#include <unordered_set>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <weft/strategy/precision.hpp>
#include <weft/unit/walk.hpp>

namespace weft::shard {

constexpr at::ScalarType dtype_of(Number number) {
  using enum Number;
  return number == fp64 ? at::kDouble : number == bf16 ? at::kBFloat16 : number == fp16 ? at::kHalf : at::kFloat;
}

/// Of a group of parameters, beside the dtype that they are kept in.
struct Numbers {
  at::ScalarType computed;  // gathered, and seen by forward
  at::ScalarType reduced;   // of gradients while they are added up over ranks
  auto operator<=>(Numbers const&) const = default;
};

/// [Note: what a precision casts] A plan that computes in what it stores casts nothing: the module was converted before, and a parameter that has
/// another dtype all the same was given it on purpose, and is reduced in it. A plan that computes in something else casts every floating
/// parameter, except those of a layer that keeps statistics.
inline Numbers numbers_of(at::ScalarType kept, bool has_statistics, PrecisionPlan const& plan) {
  if (!c10::isFloatingType(kept)) return {kept, kept};
  bool const casts = plan.computed != plan.stored;
  auto const reduced = casts || kept == dtype_of(plan.stored) ? dtype_of(plan.reduced) : kept;
  return {casts && !has_statistics ? dtype_of(plan.computed) : kept, reduced};
}

/// [Note: layers that keep statistics] A running mean in eight bits of mantissa stops moving, so buffers that forward updates keep their dtype
/// (known fault NUM-19), and ATen's normalisations want weights in the dtype of the statistics: such a layer takes low inputs and returns low outputs, with
/// weights as they are kept. Told by the name that LibTorch's batch and instance norms give their buffer. tests/shard/precision.cpp
inline bool has_statistics(torch::nn::Module const& layer) {
  auto const buffers = layer.named_buffers(/*recurse=*/false);
  auto const* const mean = buffers.find("running_mean");
  return mean && mean->defined();
}

/// The parameters of such layers.
inline std::unordered_set<at::TensorImpl*> parameters_with_statistics(torch::nn::Module& model) {
  std::unordered_set<at::TensorImpl*> found;
  unit::for_each_module(model, [&](std::string const&, torch::nn::Module& layer) {
    if (!has_statistics(layer)) return;
    for (auto const& parameter : layer.parameters(/*recurse=*/false)) found.insert(parameter.unsafeGetTensorImpl());
  });
  return found;
}

}  // namespace weft::shard
