// init/deferred_init.hpp -- modules that are built without memory, or on another device.
// In: a scope, and a module that is built in it. Out: the same module, and the same random numbers, with memory when it
// is asked for.
//
//   auto const model = [] { weft::DeferredInit const scope; return Model(4096); }();   // no memory
//   auto wrapped = fabric.setup(model);                                                // one parameter after another
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/module.h>

#include <weft/core/error.hpp>
#include <weft/init/deferred_operations.hpp>
#include <weft/init/deferred_storage.hpp>
#include <weft/init/operation_call.hpp>

namespace weft::inline v0 {

/// What deferring has come to.
struct InitReport {
  std::size_t deferred_bytes = 0;  // that got no memory when the module was built
  std::vector<init::EarlyRead>
      early_reads{};  // operations of the constructor that needed values, and the memory that this took
  std::vector<std::string> uninitialized{};  // parameters and buffers that nothing has given values

  std::size_t early_bytes() const {
    std::size_t sum = 0;
    for (auto const& read : early_reads) sum += read.bytes;
    return sum;
  }
};

namespace init::detail {

/// Parameters, then buffers, each once.
inline std::vector<std::pair<std::string, at::Tensor>> state_of(torch::nn::Module const& module) {
  std::vector<std::pair<std::string, at::Tensor>> state;
  std::unordered_set<at::TensorImpl*> known;
  auto const add = [&](auto const& named) {
    for (auto const& item : named)
      if (item.value().defined() && known.insert(item.value().unsafeGetTensorImpl()).second)
        state.emplace_back(item.key(), item.value());
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return state;
}

}  // namespace init::detail

/// While it lives, what this thread builds gets no memory: parameters, buffers and other tensors know their shapes, and
/// what is done to them is recorded. Random numbers are those of a program without the scope, and so is the generator
/// once the module has been set up.
///
/// Whoever reads a value in the scope gets it, and report() says who did and what it took. After the scope, a tensor
/// without memory is an error until setup, or weft::materialize(module). A module gets its memory with all else that
/// was built in the same scope.
class [[nodiscard]] DeferredInit {
 public:
  explicit DeferredInit(Init how = {}) {
    init::detail::listen_to_operations();
    scope_.around = std::exchange(init::detail::init_scope(), &scope_);
    scope_.operations = scope_.around ? scope_.around->operations : init::DeferredOperations::of_thread();
    if (scope_.around) {
      if (!how.device) how.device = scope_.around->how.device;
      if (!how.dtype) how.dtype = scope_.around->how.dtype;
    }
    scope_.how = how;
    deferred_before_ = scope_.operations->bytes_deferred();
    reads_before_ = scope_.operations->early_reads().size();
  }
  ~DeferredInit() {
    init::detail::init_scope() = scope_.around;
    if (!scope_.around) scope_.operations->end_scope();
  }
  DeferredInit(DeferredInit const&) = delete;
  DeferredInit& operator=(DeferredInit const&) = delete;

  /// Of the scope so far.
  InitReport report() const {
    auto const& reads = scope_.operations->early_reads();
    return {.deferred_bytes = scope_.operations->bytes_deferred() - deferred_before_,
            .early_reads = {reads.begin() + static_cast<std::ptrdiff_t>(reads_before_), reads.end()}};
  }

 private:
  init::detail::InitScope scope_;
  std::size_t deferred_before_, reads_before_;
  c10::impl::IncludeDispatchKeyGuard listening_{c10::DispatchKey::DeferredInit};
};

/// What a program writes into a tensor by a pointer: `fill(tensor)` is called when the tensor has memory, now or later.
/// It writes all of it, and draws nothing from LibTorch's generators.
inline void fill_with(at::Tensor const& tensor, std::function<void(at::Tensor const&)> fill) {
  auto const* const from = init::detail::awaited(tensor);
  if (!from) {
    c10::impl::ExcludeDispatchKeyGuard const at_once(c10::DispatchKey::DeferredInit);
    at::NoGradGuard const no_grad;
    return fill(tensor);
  }
  auto const values = tensor.detach();
  from->operations->record(
      {.name = "weft::fill_with",
       .run = [fill = std::move(fill)](torch::jit::Stack& stack) { fill(stack.front().toTensor()); },
       .arguments = {values},
       .written = {values},
       .read = {},
       .made = {},
       .overwrites = true},
      /*without_draws=*/false);
}

namespace init {

/// Parameters and buffers that nothing has given values so far.
inline std::vector<std::string> uninitialized_in(torch::nn::Module const& module) {
  std::vector<std::string> names;
  for (auto const& [name, tensor] : detail::state_of(module))
    if (auto const* const found = detail::awaited(tensor); found && found->operations->is_uninitialized(tensor))
      names.push_back(name);
  return names;
}

/// Whether something of it waits for memory on another device than this.
inline bool waits_elsewhere(torch::nn::Module const& module, at::Device device) {
  auto const state = detail::state_of(module);
  return std::any_of(state.begin(), state.end(),
                     [&](auto const& item) { return is_deferred(item.second) && item.second.device() != device; });
}

/// Those that this module's parameters and buffers wait for.
inline std::vector<std::shared_ptr<DeferredOperations>> deferred_operations_of(torch::nn::Module const& module) {
  std::vector<std::shared_ptr<DeferredOperations>> recorded;
  for (auto const& [name, tensor] : detail::state_of(module))
    if (auto const* const found = detail::awaited(tensor);
        found && std::find(recorded.begin(), recorded.end(), found->operations) == recorded.end())
      recorded.push_back(found->operations);
  return recorded;
}

/// Gives a module's parameters and buffers that have no memory their values: `completed` is called with each of them as
/// soon as it has its own, and the memory may be taken from it there. Beside what the program keeps then, memory is
/// held for the operations of one parameter.
inline void initialize(torch::nn::Module const& module, std::function<void(at::Tensor const&)> const& completed) {
  std::unordered_map<c10::StorageImpl const*, std::vector<at::Tensor>> waiting;
  std::vector<at::Tensor> tensors;
  for (auto const& [name, tensor] : detail::state_of(module)) {
    tensors.push_back(tensor);
    if (is_deferred(tensor)) waiting[tensor.storage().unsafeGetStorageImpl()].push_back(tensor);
  }
  auto recorded = deferred_operations_of(module);
  // All of these may have values, while a table that the module keeps beside them has none.
  if (auto const& last = DeferredOperations::last_of_thread();
      last && std::find(recorded.begin(), recorded.end(), last) == recorded.end())
    recorded.push_back(last);
  for (auto const& operations : recorded)
    operations->replay_scopes_of(tensors, [&](c10::StorageImpl& storage) {
      if (auto const found = waiting.find(&storage); found != waiting.end())
        for (auto const& tensor : found->second) {
          detail::unmark(*tensor.unsafeGetTensorImpl());
          completed(tensor);
        }
    });
  for (auto const& tensor : tensors)
    if (!is_deferred(tensor)) detail::unmark(*tensor.unsafeGetTensorImpl());  // of those that were read early
}

}  // namespace init

/// A module that fabric.init_module has built, for fabric.setup: until then it has no memory, and nothing that could
/// use it.
template <class M>
class [[nodiscard]] Unmaterialized {
 public:
  Unmaterialized(M module, InitReport report) : module_(std::move(module)), report_(std::move(report)) {}
  InitReport const& report() const { return report_; }
  M take() && { return std::move(module_); }

  template <class... Arguments>
  at::Tensor operator()(Arguments&&...) const {
    static_assert(sizeof(M) == 0,
                  "weft: a module from init_module has no memory before setup: pass it to fabric.setup, and call what "
                  "that returns");
    return {};
  }
  auto operator->() const {
    static_assert(sizeof(M) == 0,
                  "weft: a module from init_module has no memory before setup: pass it to fabric.setup, and use what "
                  "that returns; to change a module before, build it "
                  "in a scope of weft::DeferredInit");
    return module_.operator->();
  }

 private:
  M module_;
  InitReport report_;
};
/// Gives a module that was built in a scope of DeferredInit its memory and its values, without a strategy.
template <class M>
InitReport materialize(M const& module) {
  torch::nn::Module const& it = *module;
  InitReport report{.uninitialized = init::uninitialized_in(it)};
  init::initialize(it, [](at::Tensor const&) {});
  return report;
}
template <class M>
[[deprecated("weft: materialise is materialize now")]] InitReport materialise(M const& module) {
  return materialize(module);
}

}  // namespace weft
