// comm/trace.ipp -- definitions of comm/trace.hpp.
#pragma once

#include <weft/comm/trace.hpp>
#include <weft/core/build.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE char const* name_of(Kind kind) {
  constexpr char const* names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather",
                                   "scatter",    "all_to_all", "send",           "recv",      "barrier"};
  return names[static_cast<int>(kind)];
}

WEFT_INLINE auto Recorder::note(Kind kind, std::string const& axis, int group_size, std::size_t bytes) -> Place {
  if (!on_) return {};
  std::lock_guard const lock(mutex_);
  if (!on_) return {};
  events_.push_back({phase_, kind, group_size, bytes, now_us(), -1, axis});
  return {recording_, events_.size() - 1};
}

}  // namespace weft::comm
