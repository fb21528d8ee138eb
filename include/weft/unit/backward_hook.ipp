// unit/backward_hook.ipp -- definitions of unit/backward_hook.hpp.
#pragma once

#include <weft/unit/backward_hook.hpp>

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <weft/activation/recompute_scope.hpp>
#include <weft/comm/autograd_node.hpp>
#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::unit::detail {

WEFT_INLINE void SharedHook::run() {
  if (at::GradMode::is_enabled())
    fail<ConfigurationError>(
        "weft: backward with create_graph=true meets the backward hook of a unit that the strategy has hooks on: a "
        "second pass "
        "would not enter the unit again; use SingleDevice for second derivatives, or compute them outside of the "
        "wrapped model");
  std::scoped_lock lock(mutex_);
  int const pass = torch::autograd::get_current_graph_task_id();
  if (pass >= 0 && std::find(passes_.begin(), passes_.end(), pass) != passes_.end()) return;
  passes_.push_back(pass);
  used_up_ = used_up_ || !keeps_graph();
  listener_->pre_backward();
}

WEFT_INLINE void announce_backward(std::unordered_set<torch::autograd::Node*> const& nodes, void const* who) {
  std::unordered_set<SharedHook*> shared_hooks;
  for (auto* const node : nodes)
    if (auto* const add_backward_hook = dynamic_cast<HookNode*>(node))
      if (shared_hooks.insert(add_backward_hook->shared.get()).second) add_backward_hook->shared->expect(who);
}

WEFT_INLINE std::vector<at::Tensor> behind_hook(std::vector<at::Tensor> const& xs, SharedHookPtr const& shared,
                                                bool as_is) {
  auto const node = comm::make_node<HookNode>(shared);
  for (auto const& x : xs) node->add_next_edge(torch::autograd::impl::gradient_edge(x));
  at::NoGradGuard const no_grad;
  std::vector<at::Tensor> ys;
  for (auto const& x : xs) {
    auto const& y = ys.emplace_back(as_is ? x.view_as(x) : x.detach());
    torch::autograd::set_history(y, node);
    if (as_is)
      torch::autograd::impl::get_view_autograd_meta(y)->set_creation_meta(
          torch::autograd::CreationMeta::IN_CUSTOM_FUNCTION);
  }
  return ys;
}

WEFT_INLINE bool shares_storage(at::Tensor const& tensor, std::vector<at::Tensor> const& others,
                                Storages const& outside) {
  if (tensor.is_leaf() || (tensor.is_view() && tensor._base().is_leaf() && tensor._base().requires_grad())) return true;
  auto* const storage = storage_of(tensor);
  if (storage == nullptr) return false;
  if (std::any_of(outside.begin(), outside.end(),
                  [&](auto const& other) { return other._unsafe_get_target() == storage; }))
    return true;
  return std::any_of(others.begin(), others.end(),
                     [&](auto const& other) { return !other.is_same(tensor) && storage_of(other) == storage; });
}

WEFT_INLINE std::vector<at::Tensor> distinct(std::vector<at::Tensor*> const& tensors) {
  std::vector<at::Tensor> result;
  for (auto const* tensor : tensors) {
    if (!can_have_hook(*tensor)) continue;
    if (std::none_of(result.begin(), result.end(), [&](auto const& seen) { return seen.is_same(*tensor); }))
      result.push_back(*tensor);
  }
  return result;
}

WEFT_INLINE void replace(std::vector<at::Tensor*> const& tensors, std::vector<at::Tensor> const& old,
                         std::vector<at::Tensor> const& by) {
  for (auto* tensor : tensors)
    for (std::size_t i = 0; i < old.size(); ++i)
      if (tensor->is_same(old[i])) {
        *tensor = by[i];
        break;
      }
}

}  // namespace weft::unit::detail

namespace weft::inline v0::unit {

WEFT_INLINE void add_backward_hook(std::shared_ptr<BackwardHook> const& listener,
                                   std::vector<at::Tensor*> const& tensors, Storages const& outside) {
  if (!at::GradMode::is_enabled() || activation::is_recomputing()) return;
  auto const before = detail::distinct(tensors);
  if (before.empty()) return;
  auto const shared = std::make_shared<detail::SharedHook>(listener);
  std::vector<at::Tensor> after;
  after.reserve(before.size());
  // One node per tensor: what is upstream of an output that gets no gradient stays out of the pass, as it would without
  // a backward hook.
  for (auto const& tensor : before)
    after.push_back(detail::behind_hook({tensor}, shared, detail::shares_storage(tensor, before, outside)).front());
  detail::replace(tensors, before, after);
}

WEFT_INLINE void add_joint_backward_hook(std::shared_ptr<BackwardHook> const& listener,
                                         std::vector<at::Tensor*> const& tensors) {
  if (!at::GradMode::is_enabled() || activation::is_recomputing()) return;
  auto const before = detail::distinct(tensors);
  if (before.empty()) return;
  detail::replace(tensors, before,
                  detail::behind_hook(before, std::make_shared<detail::SharedHook>(listener), /*as_is=*/true));
}

}  // namespace weft::unit
