// report/chrome_trace.hpp -- a recording as a picture: when which rank did what.
// In: every rank's collectives and spans. Out: one file in Chrome's trace-event format, for Perfetto or
// chrome://tracing, with a process for each rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/comm/communicator.hpp>
#include <weft/comm/session.hpp>
#include <weft/comm/trace.hpp>
#include <weft/report/span.hpp>

namespace weft::inline v0::report {

/// What a rank's clock shows, in microseconds, when that of rank 0 shows `offset_us` more; off by at most `error_us`.
struct ClockOffset {
  double offset_us = 0;
  double error_us = 0;
};

namespace detail {

using Clock = std::chrono::steady_clock;
inline double micros(Clock::time_point time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

/// To the nanosecond, without an exponent.
inline std::string json_micros(double us) {
  char text[48];
  std::snprintf(text, sizeof text, "%.3f", us);
  return text;
}

/// Bars of one row of the picture must not overlap, and collectives do: the first row that is free takes the next one.
class Rows {
 public:
  std::size_t place(double begin_us, double end_us);
  std::size_t size() const { return ends_us_.size(); }

 private:
  std::vector<double> ends_us_;
};

}  // namespace detail

/// The events of one rank's process, separated by commas. Times are the rank's own plus `shift_us`.
/// A collective that was not seen to end, and a message, is a mark instead of a bar.
std::string trace_events(int rank, std::string_view where, std::vector<comm::Event> const& collectives,
                         double collectives_began_us, std::vector<Span> const& spans, double shift_us);

/// The whole file. `about` is what it says of itself: key and JSON.
std::string trace_file(std::vector<std::string> const& ranks,
                       std::vector<std::pair<std::string, std::string>> const& about = {});

/// By messages to and fro, of which the fastest counts: rank 0's answer lies between question and receipt. Collective.
ClockOffset clock_offset(comm::Communicator& group);

/// Writes what all ranks recorded to `path`, on rank 0. Collective; not while the recorder is on. Spans may be of this
/// rank alone. Ranks of one node share the machine's steady clock; those of others are put in rank 0's by clock_offset.
/// The file says how: otherData.clock_offsets has for each rank what was added to its times, and how much that may be
/// off.
///
///   fabric.recorder().start();
///   ... some steps ...
///   weft::report::save_trace("trace.json", fabric.session(), fabric.recorder().stop(), timer.spans());
void save_trace(std::filesystem::path const& path, comm::Session const& session,
                std::vector<comm::Event> const& collectives, std::vector<Span> const& spans = {});

}  // namespace weft::report

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/report/chrome_trace.ipp>
#endif
