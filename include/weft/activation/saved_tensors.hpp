// activation/saved_tensors.hpp -- what autograd keeps for backward, through a program's hands.
// In: a pack and an unpack function, for a scope. Out: autograd keeps what pack made of each tensor, and asks unpack in
// backward.
//
//   auto const half = weft::saved_tensors([](at::Tensor const& t) { return t.to(at::kBFloat16); }, [](at::Tensor const&
//   t) { return t.to(at::kFloat); });
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace weft::inline v0 {
namespace activation {

using MakeSavedTensorHooks = std::function<std::unique_ptr<torch::autograd::SavedVariableHooks>()>;

namespace detail {

/// [Note: an engine for its hooks] LibTorch asks the default autograd engine for hooks whenever a node saves a tensor,
/// and only Python's has some. So weft puts an engine in place that is LibTorch's own in all else. Another program's,
/// such as Python's, stays: what needs hooks says so then. Of several shared objects with weft inside, which the loader
/// may keep apart, the first one's engine serves all: the hooks lie where that engine looks for them. Not final: a cast
/// to a final class may compare addresses, of which each object has its own. tests/shared_objects
class [[gnu::visibility("default")]] HookEngine : public torch::autograd::Engine {
 public:
  using Stack = std::vector<MakeSavedTensorHooks const*>;

  /// Of this thread, in the engine that is in use; the last one counts.
  static Stack& stack();

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    auto const& hooks = own_stack();
    return hooks.empty() ? nullptr : (*hooks.back())();
  }

 private:
  static HookEngine& instance() {
    static auto* const engine = new HookEngine;  // as LibTorch's own: threads may use it until the process ends
    return *engine;
  }
  static Engine& get() { return instance(); }
  virtual Stack& own_stack() {
    static thread_local Stack hooks;
    return hooks;
  }
};

/// A node would compute something with another one, or crash.
void require_unpacked(at::Tensor const& tensor, at::IntArrayRef sizes, at::TensorOptions const& options);

}  // namespace detail

/// While it lives, tensors that nodes save on this thread get hooks of this kind, and none of a scope around it.
class [[nodiscard]] SavedTensorHooks {
 public:
  explicit SavedTensorHooks(MakeSavedTensorHooks make) : make_(std::move(make)), stack_(detail::HookEngine::stack()) {
    stack_.push_back(&make_);
  }
  ~SavedTensorHooks() { std::erase(stack_, &make_); }  // the last one, unless guards are not scopes
  SavedTensorHooks(SavedTensorHooks const&) = delete;
  SavedTensorHooks& operator=(SavedTensorHooks const&) = delete;

 private:
  MakeSavedTensorHooks make_;
  detail::HookEngine::Stack& stack_;  // a guard belongs to one thread
};

}  // namespace activation

/// For a scope: `pack(tensor)` is called, without gradients, for each tensor that a node saves, and what it returns is
/// kept; `unpack(packed)` gives back a tensor of the same shape, dtype and device, each time backward asks for it.
/// Parameters and buffers that nodes save are among them. The scope is this thread's: of a DataParallel model's
/// replicas, it reaches the first. `pack` must not change its tensor. The functions live as long as any graph made in
/// the scope.
template <class Pack, class Unpack>
auto saved_tensors(Pack pack, Unpack unpack) {
  using Packed = std::remove_cvref_t<std::invoke_result_t<Pack&, at::Tensor const&>>;
  static_assert(std::is_invocable_r_v<at::Tensor, Unpack&, Packed const&>,
                "weft: saved_tensors(pack, unpack): unpack takes what pack returns, and returns a tensor");
  using Functions = std::pair<Pack, Unpack>;
  struct Hooks final : torch::autograd::SavedVariableHooks {
    explicit Hooks(std::shared_ptr<Functions> it) : functions(std::move(it)) {}
    void call_pack_hook(at::Tensor const& tensor) override {
      sizes = tensor.sizes().vec();
      options = tensor.options();
      packed.emplace(functions->first(tensor.detach()));
    }
    at::Tensor call_unpack_hook() override {
      at::Tensor tensor = functions->second(std::as_const(*packed));
      activation::detail::require_unpacked(tensor, sizes, options);
      return tensor;
    }
    std::shared_ptr<Functions> functions;
    std::vector<int64_t> sizes;
    at::TensorOptions options;
    std::optional<Packed> packed;
  };
  return activation::SavedTensorHooks([functions = std::make_shared<Functions>(std::move(pack), std::move(unpack))] {
    return std::make_unique<Hooks>(functions);
  });
}

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/activation/saved_tensors.ipp>
#endif
