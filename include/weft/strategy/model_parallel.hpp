// strategy/model_parallel.hpp -- one model over several ranks, by tensors or by stages.
// In: plans or a function, a mesh, and the strategy for the axes they leave alone. Out: the parts under their names.
#pragma once

#include <weft/plan/mesh.hpp>
#include <weft/plan/plan.hpp>
#include <weft/strategy/ddp.hpp>
#include <weft/strategy/strategy.hpp>

namespace weft::inline v0 {

template <class... Options>
struct ModelParallel {
  using category = weft::category::strategy;
  using options = core::TypeList<Options...>;
  using takes = core::TypeList<weft::category::plan, weft::category::mesh, weft::category::strategy>;
  static constexpr std::string_view name = "ModelParallel";
  static constexpr NoConfig config{};
  static constexpr Topology topology{};
  static constexpr bool needs_plan = true;
  static constexpr bool is_built = false;

  using plans = plan::policies_t<weft::category::plan, options>;
  using inner = plan::policy_or_t<weft::category::strategy, options, DefaultInner>;
};

template <class... Options>
struct Pipeline {
  using category = weft::category::strategy;
  using options = core::TypeList<Options...>;
  using takes = core::TypeList<weft::category::plan, weft::category::mesh, weft::category::strategy>;
  static constexpr std::string_view name = "Pipeline";
  static constexpr NoConfig config{};
  static constexpr Topology topology{};
  static constexpr bool is_built = false;

  using plans = plan::policies_t<weft::category::plan, options>;
  using inner = plan::policy_or_t<weft::category::strategy, options, DefaultInner>;
};

template <class S>
inline constexpr bool is_model_parallel_v = false;
template <class... Options>
inline constexpr bool is_model_parallel_v<ModelParallel<Options...>> = true;

}  // namespace weft
