// shard/buffer_pool.hpp -- pieces of memory that a sharded step takes and gives back, again and again.
// In: sizes. Out: storages whose memory comes and goes, and the pieces that pass from one to the next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <torch/version.h>

#include <weft/comm/streams.hpp>
#include <weft/core/memory_tag.hpp>

namespace weft::inline v0::shard {

// What a step allocates says what it is for: report::MemoryCount counts by these, and estimate.hpp adds the same ones
// up.
using core::MemoryTag;
using core::Tagged;

/// [Note: pieces pass on] The next unit's whole parameters, and its gradients in one piece, are as large as what the
/// last unit has just given back. malloc returns large blocks to the system, and each page of a fresh one is a fault:
/// in a step of small units they cost the host more than all else that sharding does. So in the engine's own hands,
/// where nothing else is allocated meanwhile, a piece is kept for the next that asks. None is held while units compute:
/// no peak is higher for it. Accelerators' allocators do as much by themselves.
class BufferPool {
 public:
  /// From here on what is given back is kept, until close().
  void open() { is_open_ = true; }
  void close() {
    is_open_ = false;
    pieces_.clear();
  }

  void recycle(at::DataPtr data, std::size_t bytes, MemoryTag tag) {
    if (is_open_ && data.device().is_cpu() && bytes > 0) pieces_.push_back({std::move(data), bytes, tag});
  }
  /// A piece of this size, or none. A new one comes in the place of what was there: of the same purpose, or of any.
  at::DataPtr acquire(std::size_t bytes, MemoryTag tag) {
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

 private:
  struct Piece {
    at::DataPtr data;
    std::size_t bytes;
    MemoryTag tag;
  };
  std::vector<Piece> pieces_;
  bool is_open_ = false;
};

/// Memory that goes and comes back under the same StorageImpl.
class ResizableStorage {
 public:
  ResizableStorage(at::Tensor tensor, std::string what, BufferPool& pool)
      : tensor_(std::move(tensor)), what_(std::move(what)), bytes_(storage().nbytes()), pool_(&pool) {}

  at::Tensor const& tensor() const { return tensor_; }

  void release() {
    comm::used_on_current_stream(
        tensor_);  // by kernels that read the parameters; see [Note: memory belongs to a stream]
    pool_->recycle(storage().set_data_ptr(at::DataPtr(nullptr, tensor_.device())), bytes_, MemoryTag::gathered);
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 215
    storage().release_data_and_set_meta_custom_data_ptr_error_msg_(what_);
#else
    storage().set_nbytes(0);
#endif
  }
  void allocate() {
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

 private:
  c10::StorageImpl& storage() const { return *tensor_.storage().unsafeGetStorageImpl(); }

  at::Tensor tensor_;
  std::string what_;
  std::size_t bytes_;
  BufferPool* pool_;
};

/// One dim, uninitialized: of a piece of the pool where one fits.
inline at::Tensor empty(int64_t numel, at::TensorOptions const& options, MemoryTag what_for,
                        BufferPool* pool = nullptr) {
  Tagged const tag(what_for);
  auto const bytes = static_cast<std::size_t>(numel) * options.dtype().itemsize();
  auto data = pool ? pool->acquire(bytes, what_for) : at::DataPtr();
  if (!data) return at::empty({numel}, options);
  c10::Storage const storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr, /*resizable=*/false);
  return at::empty({0}, options).set_(storage, 0, {numel}, {1});
}
/// The same, for a ResizableStorage that is to be released first.
inline at::Tensor without_memory(int64_t numel, at::TensorOptions const& options) {
  c10::Storage const storage(
      c10::Storage::use_byte_size_t(), static_cast<std::size_t>(numel) * options.dtype().itemsize(),
      at::DataPtr(nullptr, options.device()), c10::GetAllocator(options.device().type()), /*resizable=*/false);
  return at::empty({0}, options).set_(storage, 0, {numel}, {1});
}
/// Ends a tensor that nobody looks into again, whoever still holds it: a backend's thread lets go a little later than
/// it wakes who waits.
inline void recycle_storage(at::Tensor const& tensor, MemoryTag what_for, BufferPool& pool) {
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  auto const bytes = storage.nbytes();
  pool.recycle(storage.set_data_ptr(at::DataPtr(nullptr, tensor.device())), bytes, what_for);
}
/// Ends a tensor that has its storage to itself; one that others view goes when they do.
inline void recycle(at::Tensor&& tensor, MemoryTag what_for, BufferPool& pool) {
  auto const last = std::move(tensor);
  if (!last.defined() || last.use_count() > 1 || last.storage().use_count() > 1) return;
  recycle_storage(last, what_for, pool);
}

}  // namespace weft::shard
