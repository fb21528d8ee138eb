// estimates/shape_of.hpp -- the shape of a model that exists.
// In: a module before setup, and the policies of a Fabric. Out: the ModelShape that estimate<...> takes.
//
//   auto const shape = weft::shape_of<Run>(model);
//   fabric.print(weft::estimate<Run>(shape, 8).peak_bytes);
#pragma once

#include <cstddef>
#include <type_traits>

#include <torch/nn/module.h>

#include <weft/estimates/estimate.hpp>
#include <weft/model/model.hpp>
#include <weft/shard/wrap.hpp>

namespace weft::inline v0 {
namespace estimates {

/// Parameters that a policy ignores are in no unit, and not in the shape.
ModelShape shape_of(torch::nn::Module& model, shard::Wrapping const& wrapping, std::size_t optimizer_states);

}  // namespace estimates

/// shape_of<FSDP<FullShard, WrapPolicy<Block>>>(model), also of several policies, or of the program's own Fabric<...>.
/// `model` is a holder, a shared pointer or a module; optimizer_states as in ModelShape.
template <class... Policies, class M>
ModelShape shape_of(M const& model, std::size_t optimizer_states = 0) {
  using Strategy = typename estimates::CompositionOf<Policies...>::type::strategy;
  static_assert(!is_model_v<M>,
                "weft: shape_of<...>(model): a model after setup has parts of its parameters: ask before setup");
  auto const wrapping = shard::wrapping_of_strategy<Strategy>();
  if constexpr (std::is_base_of_v<torch::nn::Module, M>)
    return estimates::shape_of(const_cast<M&>(model), wrapping, optimizer_states);
  else if constexpr (requires { typename M::ContainedType; })
    return estimates::shape_of(*model.ptr(), wrapping, optimizer_states);
  else
    return estimates::shape_of(*model, wrapping, optimizer_states);
}

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/estimates/shape_of.ipp>
#endif
