// init/deferred_init.ipp -- definitions of init/deferred_init.hpp.
#pragma once

#include <weft/init/deferred_init.hpp>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/grad_mode.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/init/deferred_storage.hpp>

namespace weft::inline v0::init::detail {

WEFT_INLINE std::vector<std::pair<std::string, at::Tensor>> state_of(torch::nn::Module const& module) {
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

}  // namespace weft::init::detail

namespace weft::inline v0 {

WEFT_INLINE DeferredInit::DeferredInit(Init how) {
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

WEFT_INLINE InitReport DeferredInit::report() const {
  auto const& reads = scope_.operations->early_reads();
  return {.deferred_bytes = scope_.operations->bytes_deferred() - deferred_before_,
          .early_reads = {reads.begin() + static_cast<std::ptrdiff_t>(reads_before_), reads.end()}};
}

WEFT_INLINE void fill_with(at::Tensor const& tensor, std::function<void(at::Tensor const&)> fill) {
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

}  // namespace weft

namespace weft::inline v0::init {

WEFT_INLINE std::vector<std::string> uninitialized_in(torch::nn::Module const& module) {
  std::vector<std::string> names;
  for (auto const& [name, tensor] : detail::state_of(module))
    if (auto const* const found = detail::awaited(tensor); found && found->operations->is_uninitialized(tensor))
      names.push_back(name);
  return names;
}

WEFT_INLINE bool waits_elsewhere(torch::nn::Module const& module, at::Device device) {
  auto const state = detail::state_of(module);
  return std::any_of(state.begin(), state.end(),
                     [&](auto const& item) { return is_deferred(item.second) && item.second.device() != device; });
}

WEFT_INLINE std::vector<std::shared_ptr<DeferredOperations>> deferred_operations_of(torch::nn::Module const& module) {
  std::vector<std::shared_ptr<DeferredOperations>> recorded;
  for (auto const& [name, tensor] : detail::state_of(module))
    if (auto const* const found = detail::awaited(tensor);
        found && std::find(recorded.begin(), recorded.end(), found->operations) == recorded.end())
      recorded.push_back(found->operations);
  return recorded;
}

WEFT_INLINE void initialize(torch::nn::Module const& module, std::function<void(at::Tensor const&)> const& completed) {
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

}  // namespace weft::init
