// comm/trace_table.ipp -- definitions of comm/trace_table.hpp.
#pragma once

#include <weft/comm/trace_table.hpp>
#include <weft/core/build.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE std::map<std::string, std::map<std::string, Sum>> trace_table(std::vector<Event> const& events, bool axes) {
  std::map<std::string, std::map<std::string, Sum>> sums;
  for (auto const& event : events) {
    auto& sum = sums[event.phase][std::string(name_of(event.kind)) + "@" + std::to_string(event.group_size) +
                                  (axes ? " " + event.axis : "")];
    sum.count += 1;
    sum.bytes += event.bytes;
    sum.ring_bytes += ring_bytes(event.kind, event.group_size, event.bytes);
  }
  return sums;
}

}  // namespace weft::comm
