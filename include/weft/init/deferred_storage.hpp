// init/deferred_storage.hpp -- a storage whose memory comes later.
// In: a storage of LibTorch's. Out: whether it waits for memory, where its values are to come from, and a sentence for
// who touches it before.
#pragma once

#include <cstddef>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <torch/version.h>

namespace weft::inline v0::init {

class DeferredOperations;

namespace detail {

/// In place of a pointer, a storage without memory knows where its values are to come from. The deleter marks it.
struct Awaited {
  std::shared_ptr<DeferredOperations> operations;
  std::size_t slot;
};
/// [Note: one in a process] Libraries that are loaded apart have functions and thread-local variables of their own, but
/// one static variable of an inline function. It points to what the first of them has.
[[gnu::visibility("default")]] inline c10::DeleterFnPtr forget_awaited() {
  static c10::DeleterFnPtr first = [](void* awaited) { delete static_cast<Awaited*>(awaited); };
  return first;
}

inline Awaited* awaited(c10::StorageImpl& storage) {
  return storage._mutable_data_ptr_no_checks().cast_context<Awaited>(forget_awaited());
}
inline Awaited* awaited(at::Tensor const& tensor) {
  return tensor.defined() && tensor.has_storage() ? awaited(*tensor.storage().unsafeGetStorageImpl()) : nullptr;
}

/// [Note: marked tensors] A tensor without memory has the dispatch key DeferredInit, and so do its views: every
/// operation on it arrives in on_operation (init/operation_call.hpp), in a scope or not, and is refused there. What is
/// no operation, a pointer, the storage refuses, as far as this LibTorch lets it. Tensors that are kept somewhere, and
/// not registered, may have the key when they have memory: a detour then, and nothing else.
inline constexpr c10::DispatchKey mark = c10::DispatchKey::DeferredInit;

at::Tensor make_marked(c10::Storage storage, c10::DispatchKeySet keys, at::Tensor const& shape);
void unmark(c10::TensorImpl& tensor);

inline void refuse_access(c10::StorageImpl& storage) {
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 215
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "weft: this tensor's initialization is deferred and it has no memory yet: pass its module to setup, or call "
      "weft::materialize(module); inside of the "
      "scope that defers, read it by operations, not by pointer, or build it under a scope with {.deferred = false}");
#else
  static_cast<void>(
      storage);  // typed pointers are refused by LibTorch: "its data is not allocated yet"; untyped ones are null
#endif
}
inline void allow_access(c10::StorageImpl& storage) {
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 215
  storage.clear_data_ptr_access_error_msg_();
#else
  static_cast<void>(storage);
#endif
}

inline c10::Allocator* allocator_for(c10::Device device) {
  return device.is_cpu() ? c10::GetCPUAllocator() : c10::GetAllocator(device.type());
}

}  // namespace detail

inline bool is_deferred(at::Tensor const& tensor) { return detail::awaited(tensor); }

}  // namespace weft::init

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/init/deferred_storage.ipp>
#endif
