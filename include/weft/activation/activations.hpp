// activation/activations.hpp -- what becomes of the activations of one unit.
// In: a call of the unit's forward, inside of its hooks. Out: the same values, with what backward needs computed again
// or kept elsewhere.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <weft/activation/offload.hpp>
#include <weft/activation/recompute.hpp>
#include <weft/activation/recompute_scope.hpp>

namespace weft::inline v0::activation {

/// Of one unit, as the policies of memory say; set at setup.
struct Activations {
  std::string what{};  // "unit layers.0 (TransformerBlock)"
  bool recomputes = false;
  std::shared_ptr<ActivationStore> store{};      // null: what is saved stays where it is
  std::shared_ptr<detail::ReloadAhead> ahead{};  // one for a model
  std::weak_ptr<torch::nn::Module> module{};
  std::vector<at::Tensor> constants{};  // parameters and buffers, which are there anyway
  std::vector<at::Tensor> buffers{};
  std::shared_ptr<std::atomic<bool>> said = std::make_shared<std::atomic<bool>>(false);  // one for a model
};

namespace detail {

/// A unit's own forward, as its policies say (null: none). The unit's hooks are around this: its parameters are
/// unsharded here, in backward as well, since backward meets the unit's pre-backward hook before anything that forward
/// saved.
template <class Result, class Base, class... Arguments>
Result run_body(std::shared_ptr<Activations const> const& how, Base const& base, Arguments&&... arguments) {
  if (!how || !at::GradMode::is_enabled()) return base(std::forward<Arguments>(arguments)...);
  std::optional<Offloading> offloading;
  // With recomputation: of its arguments alone. What a re-run around it saves here is never asked for.
  if (how->store) offloading.emplace(is_recomputing() ? nullptr : how->store, how->constants, how->ahead);
  if (!how->recomputes) return base(std::forward<Arguments>(arguments)...);
  // A graph may outlive its module.
  auto body = [base, alive = how->module.lock()](auto&&... passed) -> Result {
    return base(std::forward<decltype(passed)>(passed)...);
  };
  Recomputed what{.what = how->what, .buffers = how->buffers, .unit_said = how->said};
  what.stops_early = !noexcept(base(std::forward<Arguments>(arguments)...));
  return recomputed(std::move(what), std::move(body), std::forward<Arguments>(arguments)...);
}

}  // namespace detail
}  // namespace weft::activation
