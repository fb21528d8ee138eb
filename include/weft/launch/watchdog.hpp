// launch/watchdog.hpp -- ranks that somebody else started end together, too.
// In: a store that all ranks reach. Out: this process ends soon after another rank failed, fell silent, or took the store along.
#pragma once

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

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <weft/comm/rank_info.hpp>
#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/processes.hpp>

namespace weft::launch {

/// [Note: who notices] A rank that fails says so in the store. One that is killed says nothing: rank 0 notices that its sign of
/// life has stopped, the others notice rank 0. A rank that computes for long is alive, since its watchdog is a thread of its own.
class Watchdog final : public comm::Keeper {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds period{200};
  static constexpr std::chrono::milliseconds silence{6000};

  /// `store` is this watchdog's own connection: the ranks' is busy while they wait.
  Watchdog(c10::intrusive_ptr<c10d::Store> store, comm::RankInfo const& ranks) : store_(std::move(store)), ranks_(ranks), thread_([this] { watch(); }) {}
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
      // Somebody who lost a peer gives the cause a moment to speak first.
      auto const until = Clock::now() + (lost_peer ? std::chrono::milliseconds(1500) : std::chrono::milliseconds(0));
      while (Clock::now() < until && !store_->check({failed_key})) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      leaving();  // or this process would end by its own message, before it has said why
      say(message);
      if (ranks_.global_rank == 0) std::this_thread::sleep_for(3 * period);  // the store goes with this process: let the others read
    } catch (std::exception const&) {
    }
  }

 private:
  static constexpr char const* failed_key = "weft/failed";
  static std::string alive_key(int rank) { return "weft/alive/" + std::to_string(rank); }

  void say(std::string const& message) {
    if (store_->add("weft/failures", 1) == 1) store_->set(failed_key, std::vector<std::uint8_t>(message.begin(), message.end()));
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
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, period, [&] { return leaving_; });
        if (leaving_) break;
        lock.unlock();
        store_->add(alive_key(ranks_.global_rank), 1);
        if (store_->check({failed_key})) {
          auto const bytes = store_->get(failed_key);
          end(std::string(bytes.begin(), bytes.end()));
        }
        for (auto& peer : peers) {
          auto const sign = store_->add(alive_key(peer.rank), 0);
          if (sign == gone) continue;
          if (sign != peer.sign) {
            peer.sign = sign;
            peer.since = Clock::now();
          } else if (sign > 0 && Clock::now() - peer.since > silence) {  // before its first sign it may still be starting
            say("weft: rank " + std::to_string(peer.rank) + " of " + std::to_string(ranks_.world_size) + " has given no sign of life for " +
                std::to_string(silence.count() / 1000) + " s: it was killed, or its machine is gone");
          }
        }
      }
      store_->add(alive_key(ranks_.global_rank), gone - store_->add(alive_key(ranks_.global_rank), 0));
    } catch (std::exception const& error) {
      std::lock_guard const lock(mutex_);
      if (!leaving_) end(core::sentence("weft: rank ", ranks_.global_rank, ": lost the store where ranks meet, and with it rank 0: ", error.what()));
    }
  }

  /// Ranks that said so left on purpose.
  static constexpr std::int64_t gone = std::int64_t{1} << 40;

  [[noreturn]] static void end(std::string const& message) {
    std::cerr << message << std::endl;
    std::_Exit(1);
  }

  c10::intrusive_ptr<c10d::Store> store_;
  comm::RankInfo ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool leaving_ = false;
  std::thread thread_;
};

/// Tells the others of the exception that is being handled.
inline void tell_failure(comm::Keeper& keeper, comm::RankInfo const& ranks) {
  auto const told = Processes::report_of_exception();
  keeper.failed(core::sentence("weft: rank ", ranks.global_rank, " of ", ranks.world_size, " failed: ", told.text), told.ending == Ending::lost_peer);
}
/// The same for one that nobody catches, in a program that goes on after launch().
inline void tell_at_terminate(std::weak_ptr<comm::Keeper> keeper, comm::RankInfo const& ranks) {
  static std::weak_ptr<comm::Keeper> kept;
  static comm::RankInfo place;
  static auto const before = std::get_terminate();
  kept = std::move(keeper);
  place = ranks;
  std::set_terminate([] {
    if (auto const alive = kept.lock(); alive && std::current_exception()) tell_failure(*alive, place);
    before();
  });
}

}  // namespace weft::launch
