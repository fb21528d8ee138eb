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
        std::shared_ptr<activation::Activations const> activations = nullptr);
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

  void pre_backward() override;
  void expect_backward(void const* who) noexcept override;
  void forget_backward() noexcept override;
  void post_backward();

  // The chain as its inputs see it.
  static std::shared_ptr<BackwardHook> at_inputs(std::shared_ptr<Chain> const& chain);

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

  void enter(Tensors const& inputs);
  // The backward hook is added last, so backward enters all hooks before its gradients meet anything that a hook did to
  // the outputs.
  void leave(Tensors const& outputs, Storages const& outside);

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
  void unit_attach(std::shared_ptr<Hooks> hook);
  void unit_detach(std::shared_ptr<Hooks> const& hook);

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
  void unit_adopt(std::string path, std::shared_ptr<RootActivity> activity);
  void unit_release(std::shared_ptr<RootActivity> const& activity);
  void unit_release() {
    if (unit_state_) unit_set(unit_state_->site, unit_hooks(), {});
  }

 protected:
  UnitBase() = default;
  UnitBase(UnitBase const&) noexcept {}
  UnitBase& operator=(UnitBase const&) noexcept { return *this; }

  bool unit_in_use() const noexcept { return unit_state_ != nullptr; }

  // The chain of a call that begins now: null if there are no hooks, and autograd keeps the activations.
  std::shared_ptr<Chain> unit_enter() const;

 private:
  struct State {
    std::shared_ptr<Site const> site;
    std::shared_ptr<Chain> chain;  // null: no hooks
    std::vector<std::shared_ptr<RootActivity>> activities;
    std::shared_ptr<activation::Activations const> activations{};
  };

  State& unit_state();
  void unit_set(std::shared_ptr<Site const> site, std::vector<std::shared_ptr<Hooks>> hooks,
                std::vector<std::shared_ptr<RootActivity>> activities);

  std::unique_ptr<State> unit_state_;  // null: the unit is not in use, and costs this one check
};

}  // namespace weft::unit

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/unit/hooks.ipp>
#endif
