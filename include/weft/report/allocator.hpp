// report/allocator.hpp -- who holds how much of the CPU's memory, to the byte.
// In: a scope. Out: bytes and blocks that LibTorch holds in it and held at most, by tag and in all.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <weft/core/memory_tag.hpp>

namespace weft::inline v0::report {

using core::MemoryTag;
using core::Tagged;

/// Of one tag, or of all.
struct Held {
  std::size_t bytes = 0;
  std::size_t blocks = 0;
  std::size_t peak_bytes = 0;
  std::size_t peak_blocks = 0;

  void add(std::size_t size) {
    peak_bytes = std::max(peak_bytes, bytes += size);
    peak_blocks = std::max(peak_blocks, ++blocks);
  }
  void remove(std::size_t size) {
    bytes -= size;
    --blocks;
  }
  void reset_peak() {
    peak_bytes = bytes;
    peak_blocks = blocks;
  }
  bool operator==(Held const&) const = default;
};

namespace detail {

/// LibTorch's allocator, with a note of each block. Blocks and storages may outlive the scope and are freed as ever, so
/// this one lives as long as the process.
class CountingAllocator final : public c10::Allocator {
 public:
  [[gnu::visibility("default")]] static CountingAllocator& instance() {
    static auto* const allocator = new CountingAllocator;
    return *allocator;
  }

  void start();
  void stop();

  bool counting() const {
    std::lock_guard const lock(mutex_);
    return counting_;
  }
  Held all() const {
    std::lock_guard const lock(mutex_);
    return all_;
  }
  Held of(MemoryTag tag) const {
    std::lock_guard const lock(mutex_);
    return by_tag_[static_cast<std::size_t>(tag)];
  }
  void reset_peaks() {
    std::lock_guard const lock(mutex_);
    all_.reset_peak();
    for (auto& held : by_tag_) held.reset_peak();
  }

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, void const* from, std::size_t bytes) const override { base_->copy_data(to, from, bytes); }

 private:
  struct Block {
    std::size_t bytes;
    MemoryTag tag;
    std::uint64_t scope;
  };

  CountingAllocator() = default;

  void note(void* data, std::size_t bytes);
  void forget(void* data);
  void retag(void const* data, MemoryTag tag);
  static void release(void* data) {
    auto& allocator = instance();
    allocator.forget(data);
    allocator.base_->raw_deleter()(data);
  }

  mutable std::mutex mutex_;
  std::unordered_map<void const*, Block> blocks_;
  std::array<Held, core::num_memory_tags> by_tag_{};
  Held all_;
  std::uint64_t scope_ = 0;
  bool counting_ = false;
  std::uint8_t priority_ = 0;
  c10::Allocator* base_ = nullptr;
};

}  // namespace detail

/// Counts what all threads allocate while it lives; one at a time. Memory from before is not in it, and neither is what
/// does not come from LibTorch's allocator. Made and ended while nobody else allocates.
///
///   weft::report::MemoryCount const memory;
///   ... a step ...
///   fabric.print(memory.of(weft::report::MemoryTag::gathered).peak_bytes);
class [[nodiscard]] MemoryCount {
 public:
  MemoryCount() { detail::CountingAllocator::instance().start(); }
  ~MemoryCount() { detail::CountingAllocator::instance().stop(); }
  MemoryCount(MemoryCount const&) = delete;
  MemoryCount& operator=(MemoryCount const&) = delete;

  Held all() const { return detail::CountingAllocator::instance().all(); }
  Held of(MemoryTag tag) const { return detail::CountingAllocator::instance().of(tag); }
  void reset_peaks() const { detail::CountingAllocator::instance().reset_peaks(); }
};

}  // namespace weft::report

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/report/allocator.ipp>
#endif
