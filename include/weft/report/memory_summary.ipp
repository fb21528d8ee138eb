// report/memory_summary.ipp -- definitions of report/memory_summary.hpp.
#pragma once

#include <weft/report/memory_summary.hpp>

#include <cstdio>

#include <c10/core/Allocator.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/report/memory_count.hpp>

namespace weft::inline v0::report {

WEFT_INLINE std::string MemorySummary::table() const {
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

WEFT_INLINE std::string MemorySummary::mebibytes(std::size_t bytes) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.2f", static_cast<double>(bytes) / (1 << 20));
  return text.data();
}

WEFT_INLINE std::string MemorySummary::line(std::string_view what, std::string const& now, std::string const& peak,
                                            std::string const& blocks) {
  std::array<char, 128> text;
  std::snprintf(text.data(), text.size(), "%-24.*s%12s%12s%10s\n", static_cast<int>(what.size()), what.data(),
                now.c_str(), peak.c_str(), blocks.c_str());
  return text.data();
}

}  // namespace weft::report

namespace weft::inline v0::report::detail {

WEFT_INLINE c10::DeviceAllocator* device_allocator(c10::Device device) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!allocator)
    fail<ConfigurationError>("weft: memory of ", device,
                             ": nothing in this program allocates there; name the CPU, or build with CUDA");
  return allocator->initialized() ? allocator : nullptr;
}

WEFT_INLINE DeviceMemory device_memory(c10::Device device) {
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

}  // namespace weft::report::detail

namespace weft::inline v0::report {

WEFT_INLINE MemorySummary memory_summary(c10::Device device) {
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

WEFT_INLINE std::size_t peak_bytes(c10::Device device) {
  if (!device.is_cpu()) return detail::device_memory(device).allocated_bytes.peak;
  auto const& counter = detail::CountingAllocator::instance();
  if (!counter.counting())
    fail<ConfigurationError>(
        "weft: peak_bytes: nobody counts the CPU's memory; make a weft::report::MemoryCount before what is to be "
        "counted, or ask for peak_resident_bytes()");
  return counter.all().peak_bytes;
}

WEFT_INLINE void reset_peaks(c10::Device device) {
  if (!device.is_cpu())
    if (auto* const allocator = detail::device_allocator(device)) allocator->resetPeakStats(detail::index_of(device));
  if (auto& counter = detail::CountingAllocator::instance(); counter.counting()) counter.reset_peaks();
}

}  // namespace weft::report
