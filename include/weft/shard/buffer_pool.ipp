// shard/buffer_pool.ipp -- definitions of shard/buffer_pool.hpp.
#pragma once

#include <weft/shard/buffer_pool.hpp>

#include <algorithm>

#include <ATen/ATen.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::shard {

WEFT_INLINE at::DataPtr BufferPool::acquire(std::size_t bytes, MemoryTag tag) {
  auto const fits = [&](Piece const& piece) { return piece.bytes == bytes; };
  auto const has_tag = [&](Piece const& piece) { return piece.tag == tag; };
  auto found = std::find_if(pieces_.begin(), pieces_.end(),
                            [&](Piece const& piece) { return fits(piece) && has_tag(piece); });
  if (found == pieces_.end()) {
    std::erase_if(pieces_, has_tag);
    found = std::find_if(pieces_.begin(), pieces_.end(), fits);
  }
  if (found == pieces_.end()) {
    pieces_.clear();
    return {};
  }
  auto data = std::move(found->data);
  if (found->tag != tag) core::retag(data.get(), tag);
  pieces_.erase(found);
  return data;
}

WEFT_INLINE void ResizableStorage::release() {
  comm::used_on_current_stream(tensor_);  // by kernels that read the parameters; see [Note: memory belongs to a stream]
  pool_->recycle(storage().set_data_ptr(at::DataPtr(nullptr, tensor_.device())), bytes_, MemoryTag::gathered);
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 215
  storage().release_data_and_set_meta_custom_data_ptr_error_msg_(what_);
#else
  storage().set_nbytes(0);
#endif
}

WEFT_INLINE void ResizableStorage::allocate() {
  Tagged const tag(MemoryTag::gathered);
  auto data = pool_->acquire(bytes_, MemoryTag::gathered);
  // The storage remembers an allocator, but whoever counts memory may have come later.
  auto* const allocator = tensor_.is_cpu() ? c10::GetCPUAllocator() : storage().allocator();
  storage().set_data_ptr_noswap(data ? std::move(data) : allocator->allocate(bytes_));
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 215
  storage().clear_data_ptr_access_error_msg_();
#else
  storage().set_nbytes(bytes_);
#endif
}

WEFT_INLINE at::Tensor empty(int64_t numel, at::TensorOptions const& options, MemoryTag what_for, BufferPool* pool) {
  Tagged const tag(what_for);
  auto const bytes = static_cast<std::size_t>(numel) * options.dtype().itemsize();
  auto data = pool ? pool->acquire(bytes, what_for) : at::DataPtr();
  if (!data) return at::empty({numel}, options);
  c10::Storage const storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr, /*resizable=*/false);
  return at::empty({0}, options).set_(storage, 0, {numel}, {1});
}

WEFT_INLINE at::Tensor without_memory(int64_t numel, at::TensorOptions const& options) {
  c10::Storage const storage(
      c10::Storage::use_byte_size_t(), static_cast<std::size_t>(numel) * options.dtype().itemsize(),
      at::DataPtr(nullptr, options.device()), c10::GetAllocator(options.device().type()), /*resizable=*/false);
  return at::empty({0}, options).set_(storage, 0, {numel}, {1});
}

WEFT_INLINE void recycle_storage(at::Tensor const& tensor, MemoryTag what_for, BufferPool& pool) {
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  auto const bytes = storage.nbytes();
  pool.recycle(storage.set_data_ptr(at::DataPtr(nullptr, tensor.device())), bytes, what_for);
}

WEFT_INLINE void recycle(at::Tensor&& tensor, MemoryTag what_for, BufferPool& pool) {
  auto const last = std::move(tensor);
  if (!last.defined() || last.use_count() > 1 || last.storage().use_count() > 1) return;
  recycle_storage(last, what_for, pool);
}

}  // namespace weft::shard
