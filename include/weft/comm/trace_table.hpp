// comm/trace_table.hpp -- a run's collectives at a glance.
// In: recorded events. Out: their sums by phase, kind, group size and axis.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <weft/comm/trace.hpp>

namespace weft::inline v0::comm {

/// Sums by phase and "kind@group size", the table that the peers' audit prints; with `axes` "kind@group size axis".
std::map<std::string, std::map<std::string, Sum>> trace_table(std::vector<Event> const& events, bool axes = false);

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/trace_table.ipp>
#endif
