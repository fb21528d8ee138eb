// report/allocator.ipp -- definitions of report/allocator.hpp.
#pragma once

#include <weft/report/allocator.hpp>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::report::detail {

WEFT_INLINE void CountingAllocator::start() {
  auto* const base = c10::GetCPUAllocator();
  {
    std::lock_guard const lock(mutex_);
    if (counting_) fail<ConfigurationError>("weft: memory is counted already: end the other MemoryCount first");
    if (!base->raw_deleter())
      fail<ConfigurationError>("weft: the CPU allocator in use frees no plain pointers, so it cannot be counted");
    base_ = base;
    counting_ = true;
    ++scope_;
    all_ = {};
    by_tag_ = {};
  }
  // The lowest priority that is enough: whoever had the place before finds it as it was.
  for (priority_ = 0; c10::GetCPUAllocator() != this; ++priority_) c10::SetCPUAllocator(this, priority_);
  --priority_;
  core::detail::retag = [](void const* data, MemoryTag tag) { instance().retag(data, tag); };
}

WEFT_INLINE void CountingAllocator::stop() {
  core::detail::retag = nullptr;
  if (c10::GetCPUAllocator() == this) c10::SetCPUAllocator(base_, priority_);
  std::lock_guard const lock(mutex_);
  counting_ = false;
}

WEFT_INLINE c10::DataPtr CountingAllocator::allocate(std::size_t bytes) {
  auto from_base = base_->allocate(bytes);
  void* const data = from_base.release_context();
  if (data) note(data, bytes);
  return {data, data, &release, from_base.device()};
}

WEFT_INLINE void CountingAllocator::note(void* data, std::size_t bytes) {
  auto const tag = core::memory_tag();
  std::lock_guard const lock(mutex_);
  if (!counting_) return;
  blocks_.insert_or_assign(data, Block{bytes, tag, scope_});
  all_.add(bytes);
  by_tag_[static_cast<std::size_t>(tag)].add(bytes);
}

WEFT_INLINE void CountingAllocator::forget(void* data) {
  std::lock_guard const lock(mutex_);
  auto const found = blocks_.find(data);
  if (found == blocks_.end()) return;
  auto const block = found->second;
  blocks_.erase(found);
  if (!counting_ || block.scope != scope_) return;
  all_.remove(block.bytes);
  by_tag_[static_cast<std::size_t>(block.tag)].remove(block.bytes);
}

WEFT_INLINE void CountingAllocator::retag(void const* data, MemoryTag tag) {
  std::lock_guard const lock(mutex_);
  auto const found = blocks_.find(data);
  if (!counting_ || found == blocks_.end() || found->second.scope != scope_) return;
  by_tag_[static_cast<std::size_t>(found->second.tag)].remove(found->second.bytes);
  by_tag_[static_cast<std::size_t>(tag)].add(found->second.bytes);
  found->second.tag = tag;
}

}  // namespace weft::report::detail
