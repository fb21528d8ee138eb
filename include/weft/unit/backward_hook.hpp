// unit/backward_hook.hpp -- the edge of a unit as a node in autograd.
// In: tensors that leave (or enter) a unit. Out: the same values, and a call when gradients pass.
//
// [Note: backward hook and aliasing] A backward hook returns x.detach(), made in its forward: a non-view that shares
// storage and version counter, so in-place changes behind it work, and what autograd saved before them is still
// noticed. It knows no aliases, though: where another tensor that may be used later shares the storage (an input that
// is handed on, two views of one tensor, a parameter), an in-place change behind the backward hook would give that
// one's gradient silently wrong. There the backward hook returns its input as it is, which autograd makes a view, and
// an in-place change throws. tests/unit/backward_hook.cpp
#pragma once

#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/graph_task.h>

namespace weft::inline v0::unit {

// Hears of gradients that pass a backward hook. Called on the thread that runs backward, which for accelerators is
// autograd's.
struct BackwardHook {
  virtual ~BackwardHook() = default;
  virtual void pre_backward() = 0;
  // A pass begins that will enter, as far as its graph says, and `who` asks. See announce_backward().
  virtual void expect_backward(void const* /*who*/) noexcept {}
  // The graph is gone, and no pass has used it up (entered it without retain_graph). On the thread that let go of it.
  virtual void forget_backward() noexcept {}
};

// Storages that tensors outside of the unit live in. Weak: the memory may go, but its identity isn't given to a new
// storage.
using Storages = std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>;

inline void add_storage(Storages& storages, at::Tensor const& tensor) {
  if (tensor.defined() && tensor.has_storage()) storages.push_back(tensor.storage().getWeakStorageImpl());
}

// Whether the pass that runs leaves its graph usable for another.
inline bool keeps_graph() { return torch::autograd::get_current_graph_task_keep_graph(); }

namespace detail {

// Shared by the nodes of one backward hook. Only the first gradient of a backward pass to arrive tells the listener;
// others that arrive on other threads meanwhile wait until it has been told. The mutex is recursive because a listener
// may run a backward pass itself.
class SharedHook {
 public:
  explicit SharedHook(std::shared_ptr<BackwardHook> listener) : listener_(std::move(listener)) {}
  ~SharedHook() {
    if (!used_up_) listener_->forget_backward();
  }

  void expect(void const* who) noexcept { listener_->expect_backward(who); }
  void run();

 private:
  std::shared_ptr<BackwardHook> listener_;
  std::recursive_mutex mutex_;
  std::vector<int> passes_;  // more than one only with retain_graph
  bool used_up_ = false;
};
using SharedHookPtr = std::shared_ptr<SharedHook>;

// Gradients go on as they came, once the shared hook has run. A bare Node: torch::autograd::Function would
// bring the compiler as much as all the rest of a DDP program.
struct HookNode final : torch::autograd::Node {
  explicit HookNode(SharedHookPtr it) : shared(std::move(it)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    shared->run();
    return std::move(gradients);
  }
  SharedHookPtr shared;
};

// Tells each listener, for whoever asks, how often the pass that runs will enter it: once for each backward hook in the
// pass's graph.
void announce_backward(std::unordered_set<torch::autograd::Node*> const& nodes, void const* who);

// The values of xs behind one node: it runs when the last of them has its gradient. See [Note: backward hook and
// aliasing] for as_is.
std::vector<at::Tensor> behind_hook(std::vector<at::Tensor> const& xs, SharedHookPtr const& shared, bool as_is);

inline c10::StorageImpl* storage_of(at::Tensor const& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

inline bool can_have_hook(at::Tensor const& tensor) { return tensor.defined() && tensor.requires_grad(); }

// See [Note: backward hook and aliasing].
bool shares_storage(at::Tensor const& tensor, std::vector<at::Tensor> const& others, Storages const& outside);

// The tensors that get a backward hook, each once: one tensor in two places must stay one tensor.
std::vector<at::Tensor> distinct(std::vector<at::Tensor*> const& tensors);

void replace(std::vector<at::Tensor*> const& tensors, std::vector<at::Tensor> const& old,
             std::vector<at::Tensor> const& by);

}  // namespace detail

// Replaces, in place, the tensors that require grad by identities in autograd. When the first gradient of a backward
// pass reaches one of them, listener->pre_backward() runs before it goes on: once per pass, so outputs that are reached
// in two passes (retain_graph) enter twice. outside: storages that the unit did not make (see [Note: backward hook and
// aliasing]).
void add_backward_hook(std::shared_ptr<BackwardHook> const& listener, std::vector<at::Tensor*> const& tensors,
                       Storages const& outside = {});

// The other end: the listener hears once per pass, when the gradients of all these tensors have been computed. The
// tensors belong to the caller, so they are returned as they are: changing one in place throws.
void add_joint_backward_hook(std::shared_ptr<BackwardHook> const& listener, std::vector<at::Tensor*> const& tensors);

}  // namespace weft::unit

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/unit/backward_hook.ipp>
#endif
