// comm/trace_table.hpp -- a run's collectives at a glance.
// In: recorded events. Out: their sums by phase, kind and group size.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <weft/comm/trace.hpp>

namespace weft::inline v0::comm {

/// Sums by phase and "kind@group size", the table that the peers' audit prints.
inline std::map<std::string, std::map<std::string, Sum>> trace_table(std::vector<Event> const& events) {
  std::map<std::string, std::map<std::string, Sum>> sums;
  for (auto const& event : events) {
    auto& sum = sums[event.phase][std::string(name_of(event.kind)) + "@" + std::to_string(event.group_size)];
    sum.count += 1;
    sum.bytes += event.bytes;
    sum.ring_bytes += ring_bytes(event.kind, event.group_size, event.bytes);
  }
  return sums;
}

}  // namespace weft::comm
