// report/memory_summary.hpp -- what this rank's memory is used for, as a table and as numbers.
// In: a device. Out: its allocator's statistics (a CUDA device), what MemoryCount counts by tag (the CPU), and what the
// kernel says of the process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <weft/report/allocator.hpp>

namespace weft::inline v0::report {

/// Now, and at most since the last reset_peaks.
struct NowAndPeak {
  std::size_t now = 0;
  std::size_t peak = 0;
};

/// What the caching allocator of a CUDA device (or of another accelerator) says.
struct DeviceMemory {
  NowAndPeak allocated_bytes;  // in tensors
  NowAndPeak active_bytes;     // and not yet free for other streams
  NowAndPeak reserved_bytes;   // taken from the device: with what is cached, and what lies between blocks
  NowAndPeak allocations;
  std::size_t unusable_bytes = 0;  // inactive parts of split blocks: fragments
  std::int64_t retries = 0;        // allocations that had to give back the cache first: near the limit, and slow
  std::int64_t out_of_memory = 0;
};

struct MemorySummary {
  std::optional<DeviceMemory> device{};  // of an accelerator
  std::optional<Held> counted{};         // on the CPU, while a MemoryCount lives; by_tag are its parts
  std::array<Held, core::num_memory_tags> by_tag{};
  std::size_t resident_bytes = 0;
  std::size_t peak_resident_bytes = 0;  // since the process began

  Held const& of(MemoryTag tag) const { return by_tag[static_cast<std::size_t>(tag)]; }

  /// One line for each of these, in MiB.
  std::string table() const;

 private:
  static std::string mebibytes(std::size_t bytes);
  static std::string line(std::string_view what, std::string const& now, std::string const& peak,
                          std::string const& blocks);
};

namespace detail {

/// By the interface that all accelerators' caching allocators have, so that no header of CUDA is needed. Null before
/// the device's first use.
c10::DeviceAllocator* device_allocator(c10::Device device);
inline c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : c10::DeviceIndex{0};
}

DeviceMemory device_memory(c10::Device device);

}  // namespace detail

/// `fabric.print(weft::report::memory_summary(fabric.device()).table())`. Bytes by tag are there while a MemoryCount
/// lives.
MemorySummary memory_summary(c10::Device device = c10::kCPU);

/// What tensors on the device held at most since the last reset_peaks; on the CPU since the MemoryCount that has to
/// live.
std::size_t peak_bytes(c10::Device device = c10::kCPU);

/// From here on "at most" means: from here on. For the device, and for a MemoryCount that lives.
void reset_peaks(c10::Device device = c10::kCPU);

}  // namespace weft::report

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/report/memory_summary.ipp>
#endif
