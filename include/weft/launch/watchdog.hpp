// launch/watchdog.hpp -- ranks that somebody else started end together, too.
// In: a store that all ranks reach. Out: this process ends soon after another rank failed, fell silent, or took the
// store along.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <weft/comm/rank_info.hpp>
#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::launch {

/// [Note: who notices] A rank that fails says so in the store. One that is killed says nothing: rank 0 notices that its
/// sign of life has stopped, the others notice rank 0. A rank that computes for long is alive, since its watchdog is a
/// thread of its own. Whoever loses a peer says that too, and then a short silence is enough: the name of the rank that
/// was killed is wanted, not the loss.
class Watchdog final : public comm::FailureMonitor {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds period{200};
  static constexpr std::chrono::milliseconds silence_after_loss{1000};
  static constexpr std::chrono::milliseconds patience_after_loss{2000};
  static constexpr std::chrono::milliseconds patience_for_alike{300};

  /// `store` is this watchdog's own connection: the ranks' is busy while they wait. With `follow_parent` this process
  /// ends when its parent does.
  Watchdog(c10::intrusive_ptr<c10d::Store> store, comm::RankInfo const& ranks, std::chrono::milliseconds silence,
           bool follow_parent);
  ~Watchdog() override { leaving(); }

  void leaving() noexcept override;

  void failed(std::string const& message, bool lost_peer) noexcept override;

  /// [Note: one sentence for all] The first rank that fails in some way waits for those that fail alike, and prints for
  /// all of them; they wait for it, since a launcher may end all ranks as soon as one of them has ended.
  void print(std::string const& message) noexcept override;

 private:
  static constexpr char const* failed_key = "weft/failed";
  static constexpr char const* lost_key = "weft/lost a peer";
  static std::string alive_key(int rank) { return "weft/alive/" + std::to_string(rank); }
  static std::string lost_key_of(int rank) { return "weft/lost a peer/" + std::to_string(rank); }

  /// The first to say something is right; returns what it said.
  std::string say(std::string const& message) { return store_->compareSet(failed_key, std::string(), message); }

  /// Somebody who lost a peer gives the cause a moment to speak first. If nobody does, the ranks that lost nobody are
  /// the ones that were waited for.
  std::vector<int> wait_for_cause();
  /// Whether another rank prints this message for this one, too; prints it for all where this rank is the first.
  bool printed_for_all(std::string const& message);
  bool launcher_is_gone() const { return parent_ != 0 && ::getppid() != parent_; }
  std::string store_lost(std::string const& reason) const;
  std::string launcher_gone() const {
    return core::message("weft: rank ", ranks_.global_rank, " of ", ranks_.world_size,
                         ": the launcher that started it is gone");
  }

  void watch();

  /// Ranks that said so left on purpose.
  static constexpr std::int64_t gone = std::int64_t{1} << 40;

  [[noreturn]] void end(std::string const& message) {
    std::cerr << message << std::endl;
    if (ranks_.global_rank == 0)
      std::this_thread::sleep_for(3 * period);  // the store goes with this process: let the others read
    std::_Exit(1);
  }

  c10::intrusive_ptr<c10d::Store> store_;
  comm::RankInfo ranks_;
  std::chrono::milliseconds silence_;
  pid_t parent_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool leaving_ = false;
  std::thread thread_;
};

/// Whether run_here has nothing left to print: the failure of its rank is printed already.
[[gnu::visibility("default")]] inline bool& failure_is_printed() {
  static bool printed = false;
  return printed;
}

/// Prints the exception that is being handled, where a launched function ends by it, and tells the others.
void report_failure(comm::FailureMonitor& failure_monitor, comm::RankInfo const& ranks);
/// The same for one that nobody catches, in a program that goes on after launch().
void report_at_terminate(std::weak_ptr<comm::FailureMonitor> failure_monitor, comm::RankInfo const& ranks);

}  // namespace weft::launch

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/watchdog.ipp>
#endif
