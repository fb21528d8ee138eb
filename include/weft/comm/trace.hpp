// comm/trace.hpp -- the sequence of collectives of a run, as data.
// In: one note per collective from the backend. Out: events by phase, kind, axis, group size, bytes and times;
// comm/trace_table.hpp sums them up.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace weft::inline v0::comm {

enum class Kind {
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  send,
  recv,
  barrier
};

char const* name_of(Kind kind);

/// One collective as one rank issued it. Bytes: the tensor of all_reduce and broadcast, the gathered output of
/// all_gather, the unreduced input of reduce_scatter. Two are equal when all but their times are.
struct Event {
  std::string phase;
  Kind kind{};
  int group_size = 1;
  std::size_t bytes = 0;
  double issued_us = 0;  // since the recording began
  double done_us = -1;  // when this rank's host saw it done; NCCL: when it was enqueued. Negative: a send or a recv, or
                        // not done when the recording ended
  std::string axis = "world";  // of the device mesh
  bool operator==(Event const& other) const {
    return phase == other.phase && kind == other.kind && group_size == other.group_size && bytes == other.bytes &&
           axis == other.axis;
  }
};

/// What one rank sends in a ring for this payload: 2(n-1)/n of it for all_reduce, (n-1)/n for all_gather,
/// reduce_scatter and all_to_all.
constexpr double ring_bytes(Kind kind, int group_size, std::size_t bytes) {
  if (group_size <= 1) return 0.0;
  double const once = static_cast<double>(bytes) * (group_size - 1) / group_size;
  switch (kind) {
    case Kind::all_reduce:
      return 2.0 * once;
    case Kind::all_gather:
    case Kind::reduce_scatter:
    case Kind::all_to_all:
      return once;
    case Kind::barrier:
      return 0.0;
    default:
      return static_cast<double>(bytes);
  }
}

/// Of several events.
struct Sum {
  std::size_t count = 0;
  std::size_t bytes = 0;
  double ring_bytes = 0;
  bool operator==(Sum const&) const = default;
};

/// Records events while it is on. Collectives are issued from the driving thread and from autograd's threads alike.
class Recorder {
 public:
  using Clock = std::chrono::steady_clock;
  void start() {
    std::lock_guard const lock(mutex_);
    events_.clear();
    ++recording_;
    began_ = Clock::now();
    on_ = true;
  }
  /// Stops and hands out what was recorded since start().
  std::vector<Event> stop() {
    std::lock_guard const lock(mutex_);
    on_ = false;
    return std::exchange(events_, {});
  }
  /// When the recording began that runs or ran last: the 0 of its events' times.
  Clock::time_point began() const {
    std::lock_guard const lock(mutex_);
    return began_;
  }
  /// An event of a recording; of none while the recorder is off.
  struct Place {
    std::uint64_t recording = 0;
    std::size_t event = 0;
    explicit operator bool() const { return recording != 0; }
  };
  Place note(Kind kind, std::string const& axis, int group_size, std::size_t bytes);
  /// It is done. May come from any thread, and after its recording.
  void done(Place const& place) {
    std::lock_guard const lock(mutex_);
    if (on_ && place.recording == recording_) events_[place.event].done_us = now_us();
  }

  /// Names the phase of the events to come; the previous one returns when the scope ends.
  class [[nodiscard]] Phase {
   public:
    Phase(Recorder& recorder, char const* phase) : recorder_(recorder), before_(recorder.swap_phase(phase)) {}
    ~Phase() { recorder_.swap_phase(before_); }
    Phase(Phase const&) = delete;
    Phase& operator=(Phase const&) = delete;

   private:
    Recorder& recorder_;
    char const* before_;
  };

 private:
  double now_us() const { return std::chrono::duration<double, std::micro>(Clock::now() - began_).count(); }
  char const* swap_phase(char const* phase) {
    std::lock_guard const lock(mutex_);
    return std::exchange(phase_, phase);
  }

  mutable std::mutex mutex_;
  std::atomic<bool> on_ = false;
  char const* phase_ = "other";
  std::vector<Event> events_;
  std::uint64_t recording_ = 0;
  Clock::time_point began_{};
};

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/trace.ipp>
#endif
