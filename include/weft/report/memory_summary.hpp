// report/memory_summary.hpp -- what this rank's memory is used for, as a table and as numbers.
// In: a device. Out: its allocator's statistics (a CUDA device), what MemoryCount counts by tag (the CPU), and what the
// kernel says of the process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <weft/core/error.hpp>
#include <weft/report/allocator.hpp>
#include <weft/report/memory_count.hpp>

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
  std::string table() const {
    std::string lines = line("memory, MiB", "now", "at most", "blocks") + std::string(58, '-') + "\n";
    auto const bytes_line = [&lines](std::string_view what, NowAndPeak bytes, std::optional<std::size_t> blocks) {
      lines += line(what, mebibytes(bytes.now), mebibytes(bytes.peak), blocks ? std::to_string(*blocks) : "");
    };
    if (device) {
      bytes_line("device: allocated", device->allocated_bytes, device->allocations.now);
      bytes_line("device: active", device->active_bytes, {});
      bytes_line("device: reserved", device->reserved_bytes, {});
      lines += line("device: fragments", mebibytes(device->unusable_bytes), "", "");
      lines += line("device: retries", std::to_string(device->retries), "", "") +
               line("device: out of memory", std::to_string(device->out_of_memory), "", "");
    }
    if (counted) {
      using enum MemoryTag;
      for (auto const tag : {parameters, gathered, gradients, optimizer, reduce, rest})
        bytes_line("host: " + std::string(core::name_of(tag)), {of(tag).bytes, of(tag).peak_bytes}, of(tag).blocks);
      bytes_line("host: counted in all", {counted->bytes, counted->peak_bytes}, counted->blocks);
    }
    bytes_line("process: resident", {resident_bytes, peak_resident_bytes}, {});
    return lines;
  }

 private:
  static std::string mebibytes(std::size_t bytes) {
    std::array<char, 32> text;
    std::snprintf(text.data(), text.size(), "%.2f", static_cast<double>(bytes) / (1 << 20));
    return text.data();
  }
  static std::string line(std::string_view what, std::string const& now, std::string const& peak,
                          std::string const& blocks) {
    std::array<char, 128> text;
    std::snprintf(text.data(), text.size(), "%-24.*s%12s%12s%10s\n", static_cast<int>(what.size()), what.data(),
                  now.c_str(), peak.c_str(), blocks.c_str());
    return text.data();
  }
};

namespace detail {

/// By the interface that all accelerators' caching allocators have, so that no header of CUDA is needed. Null before
/// the device's first use.
inline c10::DeviceAllocator* device_allocator(c10::Device device) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!allocator)
    fail<ConfigurationError>("weft: memory of ", device,
                             ": nothing in this program allocates there; name the CPU, or build with CUDA");
  return allocator->initialized() ? allocator : nullptr;
}
inline c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : c10::DeviceIndex{0};
}

inline DeviceMemory device_memory(c10::Device device) {
  auto* const allocator = device_allocator(device);
  if (!allocator) return {};
  auto const statistics = allocator->getDeviceStats(index_of(device));
  auto const all = [](c10::CachingAllocator::StatArray const& of_pools) {
    auto const& stat = of_pools[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    return NowAndPeak{static_cast<std::size_t>(stat.current), static_cast<std::size_t>(stat.peak)};
  };
  return {.allocated_bytes = all(statistics.allocated_bytes),
          .active_bytes = all(statistics.active_bytes),
          .reserved_bytes = all(statistics.reserved_bytes),
          .allocations = all(statistics.allocation),
          .unusable_bytes = all(statistics.inactive_split_bytes).now,
          .retries = statistics.num_alloc_retries,
          .out_of_memory = statistics.num_ooms};
}

}  // namespace detail

/// `fabric.print(weft::report::memory_summary(fabric.device()).table())`. Bytes by tag are there while a MemoryCount
/// lives.
inline MemorySummary memory_summary(c10::Device device = c10::kCPU) {
  MemorySummary summary{.resident_bytes = resident_bytes(), .peak_resident_bytes = peak_resident_bytes()};
  if (!device.is_cpu()) summary.device = detail::device_memory(device);
  auto const& counter = detail::CountingAllocator::instance();
  if (counter.counting()) {
    summary.counted = counter.all();
    for (std::size_t tag = 0; tag < core::num_memory_tags; ++tag)
      summary.by_tag[tag] = counter.of(static_cast<MemoryTag>(tag));
  }
  return summary;
}

/// What tensors on the device held at most since the last reset_peaks; on the CPU since the MemoryCount that has to
/// live.
inline std::size_t peak_bytes(c10::Device device = c10::kCPU) {
  if (!device.is_cpu()) return detail::device_memory(device).allocated_bytes.peak;
  auto const& counter = detail::CountingAllocator::instance();
  if (!counter.counting())
    fail<ConfigurationError>(
        "weft: peak_bytes: nobody counts the CPU's memory; make a weft::report::MemoryCount before what is to be "
        "counted, or ask for peak_resident_bytes()");
  return counter.all().peak_bytes;
}

/// From here on "at most" means: from here on. For the device, and for a MemoryCount that lives.
inline void reset_peaks(c10::Device device = c10::kCPU) {
  if (!device.is_cpu())
    if (auto* const allocator = detail::device_allocator(device)) allocator->resetPeakStats(detail::index_of(device));
  if (auto& counter = detail::CountingAllocator::instance(); counter.counting()) counter.reset_peaks();
}

}  // namespace weft::report
