// report/memory_phases.ipp -- definitions of report/memory_phases.hpp.
#pragma once

#include <weft/report/memory_phases.hpp>

#include <algorithm>
#include <array>
#include <cstdio>

#include <weft/core/build.hpp>

namespace weft::inline v0::report {

WEFT_INLINE auto MemoryPhases::enter(std::string const& name) -> Scope {
  close_stretch();
  auto const found = std::find_if(peaks_.begin(), peaks_.end(),
                                  [&name](Peak const& peak) { return peak.name == name; });
  open_.push_back(static_cast<std::size_t>(found - peaks_.begin()));
  if (found == peaks_.end()) peaks_.push_back({name});
  ++peaks_[open_.back()].times;
  return Scope(*this);
}

WEFT_INLINE std::string MemoryPhases::table() const {
  std::string lines;
  std::array<char, 80> line;
  for (auto const& peak : peaks_) {
    std::snprintf(line.data(), line.size(), "%12.2f MiB at most, entered %zu times\n",
                  static_cast<double>(peak.bytes) / (1 << 20), peak.times);
    lines += peak.name + std::string(24 - std::min<std::size_t>(peak.name.size(), 24), ' ') + line.data();
  }
  return lines;
}

WEFT_INLINE void MemoryPhases::close_stretch() {
  auto const bytes = peak_bytes(device_);
  for (auto const phase : open_) peaks_[phase].bytes = std::max(peaks_[phase].bytes, bytes);
  reset_peaks(device_);
}

}  // namespace weft::report
