// shard/buffer_pool.hpp -- pieces of memory that a sharded step takes and gives back, again and again.
// In: sizes. Out: storages whose memory comes and goes, and the pieces that pass from one to the next.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

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
  at::DataPtr acquire(std::size_t bytes, MemoryTag tag);

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

  void release();
  void allocate();

 private:
  c10::StorageImpl& storage() const { return *tensor_.storage().unsafeGetStorageImpl(); }

  at::Tensor tensor_;
  std::string what_;
  std::size_t bytes_;
  BufferPool* pool_;
};

/// One dim, uninitialized: of a piece of the pool where one fits.
at::Tensor empty(int64_t numel, at::TensorOptions const& options, MemoryTag what_for, BufferPool* pool = nullptr);
/// The same, for a ResizableStorage that is to be released first.
at::Tensor without_memory(int64_t numel, at::TensorOptions const& options);
/// Ends a tensor that nobody looks into again, whoever still holds it: a backend's thread lets go a little later than
/// it wakes who waits.
void recycle_storage(at::Tensor const& tensor, MemoryTag what_for, BufferPool& pool);
/// Ends a tensor that has its storage to itself; one that others view goes when they do.
void recycle(at::Tensor&& tensor, MemoryTag what_for, BufferPool& pool);

}  // namespace weft::shard

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/shard/buffer_pool.ipp>
#endif
