// unit/hooks.ipp -- definitions of unit/hooks.hpp.
#pragma once

#include <weft/unit/hooks.hpp>

#include <weft/activation/recompute_scope.hpp>
#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::unit {

WEFT_INLINE Chain::Chain(std::shared_ptr<Site const> site, std::vector<std::shared_ptr<Hooks>> hooks,
                         std::shared_ptr<activation::Activations const> activations)
    : site_(std::move(site)), hooks_(std::move(hooks)), activations_(std::move(activations)) {
  for (auto const& hook : hooks_) {
    each_needs_.push_back(hook->needs());
    needs_.inputs |= each_needs_.back().inputs;
    needs_.pre_backward |= each_needs_.back().pre_backward;
    needs_.post_backward |= each_needs_.back().post_backward;
  }
}

WEFT_INLINE void Chain::pre_backward() {
  for (std::size_t i = 0; i < hooks_.size(); ++i)
    if (each_needs_[i].pre_backward) hooks_[i]->pre_backward(*site_);
}

WEFT_INLINE void Chain::expect_backward(void const* who) noexcept {
  for (std::size_t i = 0; i < hooks_.size(); ++i)
    if (each_needs_[i].pre_backward) hooks_[i]->expect_backward(*site_, who);
}

WEFT_INLINE void Chain::forget_backward() noexcept {
  for (std::size_t i = 0; i < hooks_.size(); ++i)
    if (each_needs_[i].pre_backward) hooks_[i]->forget_backward(*site_);
}

WEFT_INLINE void Chain::post_backward() {
  for (std::size_t i = hooks_.size(); i-- > 0;)
    if (each_needs_[i].post_backward) hooks_[i]->post_backward(*site_);
}

WEFT_INLINE std::shared_ptr<BackwardHook> Chain::at_inputs(std::shared_ptr<Chain> const& chain) {
  struct Leaving final : BackwardHook {
    explicit Leaving(std::shared_ptr<Chain> it) : chain(std::move(it)) {}
    void pre_backward() override { chain->post_backward(); }
    std::shared_ptr<Chain> chain;
  };
  return std::make_shared<Leaving>(chain);
}

WEFT_INLINE void HookedForward::enter(Tensors const& inputs) {
  for (auto const& hook : chain_->hooks()) {
    hook->pre_forward(chain_->site(), inputs);
    ++entered_;
  }
  if (chain_->needs().post_backward) add_joint_backward_hook(Chain::at_inputs(chain_), inputs);
}

WEFT_INLINE void HookedForward::leave(Tensors const& outputs, Storages const& outside) {
  for (; entered_ > 0; --entered_) chain_->hooks()[entered_ - 1]->post_forward(chain_->site(), outputs);
  if (chain_->wants_pre_backward()) add_backward_hook(chain_, outputs, outside);
}

WEFT_INLINE void UnitBase::unit_attach(std::shared_ptr<Hooks> hook) {
  auto hooks = unit_hooks();
  hooks.push_back(std::move(hook));
  auto& state = unit_state();
  unit_set(state.site, std::move(hooks), state.activities);
}

WEFT_INLINE void UnitBase::unit_detach(std::shared_ptr<Hooks> const& hook) {
  auto hooks = unit_hooks();
  std::erase(hooks, hook);
  if (unit_state_) unit_set(unit_state_->site, std::move(hooks), unit_state_->activities);
}

WEFT_INLINE void UnitBase::unit_adopt(std::string path, std::shared_ptr<RootActivity> activity) {
  auto activities = unit_state().activities;
  auto site = activities.empty() ? std::make_shared<Site const>(Site{std::move(path), unit_type()}) : unit_state_->site;
  if (std::find(activities.begin(), activities.end(), activity) == activities.end())
    activities.push_back(std::move(activity));
  unit_set(std::move(site), unit_hooks(), std::move(activities));
}

WEFT_INLINE void UnitBase::unit_release(std::shared_ptr<RootActivity> const& activity) {
  if (!unit_state_) return;
  auto activities = unit_state_->activities;
  std::erase(activities, activity);
  unit_set(unit_state_->site, unit_hooks(), std::move(activities));
}

WEFT_INLINE std::shared_ptr<Chain> UnitBase::unit_enter() const {
  auto const& activities = unit_state_->activities;
  if (!activities.empty() && !activation::is_recomputing() &&
      std::none_of(activities.begin(), activities.end(), [](auto const& root) { return root->is_active(); }))
    fail<ConfigurationError>(
        "weft: unit ", unit_state_->site->describe(),
        " was entered while its model was not running: call what setup returned, as model(...), or as "
        "model.call<&M::method>(...) for another method, and not a module inside of it");
  return unit_state_->chain;
}

WEFT_INLINE auto UnitBase::unit_state() -> State& {
  if (!unit_state_) {
    unit_state_ = std::make_unique<State>();
    unit_state_->site = std::make_shared<Site const>(Site{"", unit_type()});
  }
  return *unit_state_;
}

WEFT_INLINE void UnitBase::unit_set(std::shared_ptr<Site const> site, std::vector<std::shared_ptr<Hooks>> hooks,
                                    std::vector<std::shared_ptr<RootActivity>> activities) {
  auto activations = unit_state_ ? unit_state_->activations : nullptr;
  if (hooks.empty() && activities.empty() && !activations) {
    unit_state_.reset();
    return;
  }
  auto chain = hooks.empty() && !activations ? nullptr : std::make_shared<Chain>(site, std::move(hooks), activations);
  unit_state_ =
      std::make_unique<State>(State{std::move(site), std::move(chain), std::move(activities), std::move(activations)});
}

}  // namespace weft::unit
