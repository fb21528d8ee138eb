// unit/hooks.hpp -- what may run around a unit's forward.
// In: a chain of hooks and one call. Out: each hook entered and left (or abandoned) once, in order, and its backward
// hooks set.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <weft/activation/recompute_scope.hpp>
#include <weft/core/error.hpp>
#include <weft/unit/backward_hook.hpp>
#include <weft/unit/root_activity.hpp>

namespace torch::nn {
class Module;
}

namespace weft::inline v0::activation {
struct Activations;
}

namespace weft::inline v0::unit {

using Tensors = std::vector<at::Tensor*>;

// Where a hook is: it outlives the module, because a graph may.
struct Site {
  std::string path;  // "layers.0"; empty for the root, and before adopt()
  std::string type;  // "TransformerBlock"
  std::string describe() const { return (path.empty() ? "(root)" : path) + " (" + type + ")"; }
};

// What a mechanism does at a unit. A hook whose pre_forward returned gets exactly one of post_forward and
// abandon_forward; one that throws in post_forward is abandoned as well. The backward ones may run on autograd's
// threads, and so may the forward ones where is_recomputing() says so: the unit is inside of something that is
// recomputed, and is abandoned as soon as enough has been.
struct Hooks {
  struct Needs {
    bool inputs = false;         // pre_forward sees the input tensors and may replace them
    bool pre_backward = false;   // pre_backward is wanted
    bool post_backward = false;  // post_backward is wanted; a unit that changes such an input in place throws
  };
  virtual ~Hooks() = default;

  virtual Needs needs() const { return {}; }  // asked once, when attached

  virtual void pre_forward(Site const&, Tensors const& /*inputs*/) {}
  virtual void post_forward(Site const&, Tensors const& /*outputs*/) {}
  virtual void abandon_forward(Site const&) noexcept {}

  // The first gradient of a backward pass has reached an output, and hasn't gone on: once per call of the unit and
  // pass.
  virtual void pre_backward(Site const&) {}
  // A pass begins whose graph has such an output in it, and `who` asks: as often as pre_backward will be called.
  virtual void expect_backward(Site const&, void const* /*who*/) noexcept {}
  // The graph of a call is gone, and no pass has used it up (entered it without retain_graph).
  virtual void forget_backward(Site const&) noexcept {}
  // All inputs that require grad and that the pass reaches have their gradient. Not called if there is no such input.
  virtual void post_backward(Site const&) {}
};

// The hooks of one unit, first outermost: entered in order and left in reverse, in forward and in backward. Immutable:
// a call that is under way keeps the chain it began with, and so does its graph.
class Chain final : public BackwardHook {
 public:
  Chain(std::shared_ptr<Site const> site, std::vector<std::shared_ptr<Hooks>> hooks,
        std::shared_ptr<activation::Activations const> activations = nullptr)
      : site_(std::move(site)), hooks_(std::move(hooks)), activations_(std::move(activations)) {
    for (auto const& hook : hooks_) {
      each_needs_.push_back(hook->needs());
      needs_.inputs |= each_needs_.back().inputs;
      needs_.pre_backward |= each_needs_.back().pre_backward;
      needs_.post_backward |= each_needs_.back().post_backward;
    }
  }
  Chain(Chain const&) = delete;
  Chain& operator=(Chain const&) = delete;

  Site const& site() const { return *site_; }
  std::vector<std::shared_ptr<Hooks>> const& hooks() const { return hooks_; }
  std::shared_ptr<activation::Activations const> const& activations() const {
    return activations_;
  }  // null: autograd keeps them
  Hooks::Needs needs() const { return needs_; }
  bool wants_inputs() const { return needs_.inputs || (needs_.post_backward && at::GradMode::is_enabled()); }
  bool wants_pre_backward() const { return needs_.pre_backward && at::GradMode::is_enabled(); }

  void pre_backward() override {
    for (std::size_t i = 0; i < hooks_.size(); ++i)
      if (each_needs_[i].pre_backward) hooks_[i]->pre_backward(*site_);
  }
  void expect_backward(void const* who) noexcept override {
    for (std::size_t i = 0; i < hooks_.size(); ++i)
      if (each_needs_[i].pre_backward) hooks_[i]->expect_backward(*site_, who);
  }
  void forget_backward() noexcept override {
    for (std::size_t i = 0; i < hooks_.size(); ++i)
      if (each_needs_[i].pre_backward) hooks_[i]->forget_backward(*site_);
  }
  void post_backward() {
    for (std::size_t i = hooks_.size(); i-- > 0;)
      if (each_needs_[i].post_backward) hooks_[i]->post_backward(*site_);
  }

  // The chain as its inputs see it.
  static std::shared_ptr<BackwardHook> at_inputs(std::shared_ptr<Chain> const& chain) {
    struct Leaving final : BackwardHook {
      explicit Leaving(std::shared_ptr<Chain> it) : chain(std::move(it)) {}
      void pre_backward() override { chain->post_backward(); }
      std::shared_ptr<Chain> chain;
    };
    return std::make_shared<Leaving>(chain);
  }

 private:
  std::shared_ptr<Site const> site_;
  std::vector<std::shared_ptr<Hooks>> hooks_;
  std::shared_ptr<activation::Activations const> activations_;
  std::vector<Hooks::Needs> each_needs_;
  Hooks::Needs needs_;
};

// One call through a chain. Destroyed before leave() is done, it abandons what it entered, innermost first.
class [[nodiscard]] HookedForward {
 public:
  explicit HookedForward(std::shared_ptr<Chain> chain) : chain_(std::move(chain)) {}
  HookedForward(HookedForward const&) = delete;
  HookedForward& operator=(HookedForward const&) = delete;
  ~HookedForward() {
    while (entered_ > 0) chain_->hooks()[--entered_]->abandon_forward(chain_->site());
  }

  void enter(Tensors const& inputs) {
    for (auto const& hook : chain_->hooks()) {
      hook->pre_forward(chain_->site(), inputs);
      ++entered_;
    }
    if (chain_->needs().post_backward) add_joint_backward_hook(Chain::at_inputs(chain_), inputs);
  }
  // The backward hook is added last, so backward enters all hooks before its gradients meet anything that a hook did to
  // the outputs.
  void leave(Tensors const& outputs, Storages const& outside) {
    for (; entered_ > 0; --entered_) chain_->hooks()[entered_ - 1]->post_forward(chain_->site(), outputs);
    if (chain_->wants_pre_backward()) add_backward_hook(chain_, outputs, outside);
  }

 private:
  std::shared_ptr<Chain> chain_;
  std::size_t entered_ = 0;
};

// The part of a unit that doesn't depend on its type; found by dynamic_cast from torch::nn::Module. All names start
// with unit_: they share a scope with the user's members. A copy of a unit (and so a clone) starts without hooks and
// outside of any root.
class UnitBase {
 public:
  virtual ~UnitBase() = default;

  virtual torch::nn::Module& unit_module() noexcept = 0;
  virtual std::string unit_type() const = 0;

  std::string unit_path() const { return unit_state_ ? unit_state_->site->path : std::string(); }
  std::vector<std::shared_ptr<Hooks>> unit_hooks() const {
    return unit_state_ && unit_state_->chain ? unit_state_->chain->hooks() : std::vector<std::shared_ptr<Hooks>>();
  }

  // The last hook attached is the innermost.
  void unit_attach(std::shared_ptr<Hooks> hook) {
    auto hooks = unit_hooks();
    hooks.push_back(std::move(hook));
    auto& state = unit_state();
    unit_set(state.site, std::move(hooks), state.activities);
  }
  void unit_detach(std::shared_ptr<Hooks> const& hook) {
    auto hooks = unit_hooks();
    std::erase(hooks, hook);
    if (unit_state_) unit_set(unit_state_->site, std::move(hooks), unit_state_->activities);
  }

  std::shared_ptr<activation::Activations const> unit_activations() const {
    return unit_state_ ? unit_state_->activations : nullptr;
  }

  // What becomes of its activations; null: autograd keeps them.
  void unit_set_activations(std::shared_ptr<activation::Activations const> activations) {
    auto& state = unit_state();
    state.activations = std::move(activations);
    unit_set(state.site, unit_hooks(), state.activities);
  }

  // Belongs to a root from now on, under this path; a unit shared by two roots keeps the path of the first.
  void unit_adopt(std::string path, std::shared_ptr<RootActivity> activity) {
    auto activities = unit_state().activities;
    auto site = activities.empty() ? std::make_shared<Site const>(Site{std::move(path), unit_type()})
                                   : unit_state_->site;
    if (std::find(activities.begin(), activities.end(), activity) == activities.end())
      activities.push_back(std::move(activity));
    unit_set(std::move(site), unit_hooks(), std::move(activities));
  }
  void unit_release(std::shared_ptr<RootActivity> const& activity) {
    if (!unit_state_) return;
    auto activities = unit_state_->activities;
    std::erase(activities, activity);
    unit_set(unit_state_->site, unit_hooks(), std::move(activities));
  }
  void unit_release() {
    if (unit_state_) unit_set(unit_state_->site, unit_hooks(), {});
  }

 protected:
  UnitBase() = default;
  UnitBase(UnitBase const&) noexcept {}
  UnitBase& operator=(UnitBase const&) noexcept { return *this; }

  bool unit_in_use() const noexcept { return unit_state_ != nullptr; }

  // The chain of a call that begins now: null if there are no hooks, and autograd keeps the activations.
  std::shared_ptr<Chain> unit_enter() const {
    auto const& activities = unit_state_->activities;
    if (!activities.empty() && !activation::is_recomputing() &&
        std::none_of(activities.begin(), activities.end(), [](auto const& root) { return root->is_active(); }))
      fail<ConfigurationError>(
          "weft: unit ", unit_state_->site->describe(),
          " was entered while its model was not running: call what setup returned, as model(...), or as "
          "model.call<&M::method>(...) for another method, and not a module inside of it");
    return unit_state_->chain;
  }

 private:
  struct State {
    std::shared_ptr<Site const> site;
    std::shared_ptr<Chain> chain;  // null: no hooks
    std::vector<std::shared_ptr<RootActivity>> activities;
    std::shared_ptr<activation::Activations const> activations{};
  };

  State& unit_state() {
    if (!unit_state_) {
      unit_state_ = std::make_unique<State>();
      unit_state_->site = std::make_shared<Site const>(Site{"", unit_type()});
    }
    return *unit_state_;
  }
  void unit_set(std::shared_ptr<Site const> site, std::vector<std::shared_ptr<Hooks>> hooks,
                std::vector<std::shared_ptr<RootActivity>> activities) {
    auto activations = unit_state_ ? unit_state_->activations : nullptr;
    if (hooks.empty() && activities.empty() && !activations) {
      unit_state_.reset();
      return;
    }
    auto chain = hooks.empty() && !activations ? nullptr : std::make_shared<Chain>(site, std::move(hooks), activations);
    unit_state_ = std::make_unique<State>(
        State{std::move(site), std::move(chain), std::move(activities), std::move(activations)});
  }

  std::unique_ptr<State> unit_state_;  // null: the unit is not in use, and costs this one check
};

}  // namespace weft::unit
