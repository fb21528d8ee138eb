// data/position.hpp -- where a loader is.
// In: epochs that begin, batches that are handed out. Out: a state that a program saves, and what the next loop starts
// from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <weft/core/error.hpp>

namespace weft::inline v0::data {

// What it takes to go on with the next batch. It counts samples of all ranks together, so that another number of ranks,
// workers or samples in a batch may go on from it; only a stream with shards of its own needs the same number of ranks.
struct LoaderState {
  std::uint64_t epoch = 0;
  std::uint64_t samples = 0;      // of this epoch that were handed out
  std::uint64_t num_samples = 0;  // in an epoch; 0 where a stream does not say
  std::uint64_t seed = 0;
  std::uint64_t num_ranks = 1;
  bool shuffled = false;
  bool operator==(LoaderState const&) const = default;

  // One line, for any file: "weft loader 1: epoch 3, 512 of 50000 samples, seed 7, 2 ranks, shuffled".
  std::string to_text() const {
    return core::message("weft loader 1: epoch ", epoch, ", ", samples, " of ", num_samples, " samples, seed ", seed,
                         ", ", num_ranks, " ranks, ", shuffled ? "shuffled" : "in order");
  }
  static LoaderState from_text(std::string_view text);
};

namespace detail {

class Position {
 public:
  // The next loop's epoch, and how much of it was handed out before.
  std::uint64_t next_epoch() const { return next_epoch_; }
  std::uint64_t start() const { return start_; }
  std::uint64_t epoch() const { return epoch_; }
  std::uint64_t samples() const { return samples_; }
  bool running() const { return running_; }

  void begin() {
    epoch_ = next_epoch_++;
    samples_ = start_;
    start_ = 0;
    running_ = true;
    ++loop_;
  }
  std::uint64_t loop() const { return loop_; }
  // By the loop that began last; an earlier one that still runs says nothing any more.
  void handed_out(std::uint64_t loop, std::uint64_t samples) {
    if (loop == loop_) samples_ = samples;
  }
  void complete(std::uint64_t loop) {
    if (loop == loop_) running_ = false;
  }
  void set_epoch(std::uint64_t epoch) {
    if (epoch != next_epoch_) start_ = 0;
    epoch_ = next_epoch_ = epoch;
    running_ = false;
  }
  void go_to(std::uint64_t epoch, std::uint64_t samples) {
    epoch_ = next_epoch_ = epoch;
    start_ = samples;
    running_ = false;
  }
  // In the middle of the loop that runs or was left, else at the start of the next.
  LoaderState state() const {
    LoaderState state;
    state.epoch = running_ ? epoch_ : next_epoch_;
    state.samples = running_ ? samples_ : start_;
    return state;
  }

 private:
  std::uint64_t epoch_ = 0, next_epoch_ = 0, samples_ = 0, start_ = 0, loop_ = 0;
  bool running_ = false;
};

}  // namespace detail
}  // namespace weft::data

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data/position.ipp>
#endif
