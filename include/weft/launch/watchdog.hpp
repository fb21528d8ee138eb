// launch/watchdog.hpp -- ranks that somebody else started end together, too.
// In: a store that all ranks reach. Out: this process ends soon after another rank failed, fell silent, or took the
// store along.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <weft/comm/rank_info.hpp>
#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/processes.hpp>

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

  /// `store` is this watchdog's own connection: the ranks' is busy while they wait. With `follow_parent` this process
  /// ends when its parent does.
  Watchdog(c10::intrusive_ptr<c10d::Store> store, comm::RankInfo const& ranks, std::chrono::milliseconds silence,
           bool follow_parent)
      : store_(std::move(store)),
        ranks_(ranks),
        silence_(silence),
        parent_(follow_parent ? ::getppid() : 0),
        thread_([this] { watch(); }) {}
  ~Watchdog() override { leaving(); }

  void leaving() noexcept override {
    {
      std::lock_guard const lock(mutex_);
      leaving_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id()) thread_.join();
  }

  void failed(std::string const& message, bool lost_peer) noexcept override {
    try {
      auto told = message;
      if (lost_peer) told += still_elsewhere(wait_for_cause());
      leaving();  // or this process would end by its own message, before it has said why
      auto const cause = say(told);
      if (lost_peer) std::cerr << cause << std::endl;
      if (ranks_.global_rank == 0) std::this_thread::sleep_for(3 * period);  // see end()
    } catch (std::exception const& error) {
      if (lost_peer) std::cerr << store_lost(error.what()) << std::endl;
    }
  }

 private:
  static constexpr char const* failed_key = "weft/failed";
  static constexpr char const* lost_key = "weft/lost a peer";
  static std::string alive_key(int rank) { return "weft/alive/" + std::to_string(rank); }
  static std::string lost_key_of(int rank) { return "weft/lost a peer/" + std::to_string(rank); }

  /// The first to say something is right; returns what it said.
  std::string say(std::string const& message) { return store_->compareSet(failed_key, std::string(), message); }

  /// Somebody who lost a peer gives the cause a moment to speak first. If nobody does, the ranks that lost nobody are
  /// the ones that were waited for.
  std::vector<int> wait_for_cause() {
    store_->set(lost_key_of(ranks_.global_rank), "yes");
    store_->set(lost_key, "yes");
    for (auto const until = Clock::now() + patience_after_loss; Clock::now() < until && !store_->check({failed_key});)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::vector<int> elsewhere;
    for (int rank = 0; rank < ranks_.world_size; ++rank)
      if (!store_->check({lost_key_of(rank)}) && store_->add(alive_key(rank), 0) < gone / 2) elsewhere.push_back(rank);
    return elsewhere;
  }
  bool launcher_is_gone() const { return parent_ != 0 && ::getppid() != parent_; }
  std::string store_lost(std::string const& reason) const {
    if (launcher_is_gone()) return launcher_gone();
    return core::message(
        "weft: rank ", ranks_.global_rank, " of ", ranks_.world_size,
        ": lost the store where ranks meet, and with it rank 0 or the launcher: ", reason.substr(0, reason.find('\n')));
  }
  std::string launcher_gone() const {
    return core::message("weft: rank ", ranks_.global_rank, " of ", ranks_.world_size,
                         ": the launcher that started it is gone");
  }

  void watch() {
    struct Peer {
      int rank;
      std::int64_t sign = -1;
      Clock::time_point since = Clock::now();
    };
    std::vector<Peer> peers;
    for (int rank = 0; rank < ranks_.world_size; ++rank)
      if (rank != ranks_.global_rank && (ranks_.global_rank == 0 || rank == 0)) peers.push_back({rank});
    try {
      for (;;) {
        store_->add(alive_key(ranks_.global_rank), 1);  // first of all: who is killed soon was there
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, period, [&] { return leaving_; });
        if (leaving_) break;
        lock.unlock();
        if (launcher_is_gone()) end(say(launcher_gone()));
        if (store_->check({failed_key})) end(say(""));
        auto const silence = store_->check({lost_key}) ? std::min(silence_, silence_after_loss) : silence_;
        Peer const* quiet = nullptr;  // the one for longest
        for (auto& peer : peers) {
          auto const sign = store_->add(alive_key(peer.rank), 0);
          if (sign != peer.sign) {
            peer.sign = sign;
            peer.since = Clock::now();
          } else if (sign > 0 && sign != gone && Clock::now() - peer.since > silence &&
                     (!quiet || peer.since < quiet->since)) {  // before its first sign it may still be starting
            quiet = &peer;
          }
        }
        if (!quiet) continue;
        // The launcher of its node may have ended others at once: signs are too rare to tell who was first.
        std::string names;
        for (auto const& peer : peers)
          if (peer.sign > 0 && peer.sign != gone && peer.since <= quiet->since + 2 * period)
            names += (names.empty() ? "" : ", ") + std::to_string(peer.rank);
        bool const one = names.find(',') == names.npos;
        end(say(core::message("weft: ", one ? "rank " : "ranks ", names, " of ", ranks_.world_size,
                              one ? " has" : " have", " given no sign of life for ", silence.count(),
                              " ms: killed, or the machine is gone")));
      }
      store_->add(alive_key(ranks_.global_rank), gone - store_->add(alive_key(ranks_.global_rank), 0));
    } catch (std::exception const& error) {
      std::lock_guard const lock(mutex_);
      if (!leaving_) end(store_lost(error.what()));
    }
  }

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

/// Tells the others of the exception that is being handled.
inline void report_failure(comm::FailureMonitor& failure_monitor, comm::RankInfo const& ranks) {
  auto const told = Processes::report_of_exception();
  failure_monitor.failed(
      core::message("weft: rank ", ranks.global_rank, " of ", ranks.world_size, " failed: ", told.text),
      told.ending == Ending::lost_peer);
}
/// The same for one that nobody catches, in a program that goes on after launch().
inline void report_at_terminate(std::weak_ptr<comm::FailureMonitor> failure_monitor, comm::RankInfo const& ranks) {
  static std::weak_ptr<comm::FailureMonitor> kept;
  static comm::RankInfo place;
  static auto const before = std::get_terminate();
  kept = std::move(failure_monitor);
  place = ranks;
  std::set_terminate([] {
    if (auto const alive = kept.lock(); alive && std::current_exception()) report_failure(*alive, place);
    before();
  });
}

}  // namespace weft::launch
