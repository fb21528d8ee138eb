// launch/watchdog.ipp -- definitions of launch/watchdog.hpp.
#pragma once

#include <weft/launch/watchdog.hpp>

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

#include <weft/core/build.hpp>
#include <weft/launch/processes.hpp>

namespace weft::inline v0::launch {

WEFT_INLINE Watchdog::Watchdog(c10::intrusive_ptr<c10d::Store> store, comm::RankInfo const& ranks,
                               std::chrono::milliseconds silence, bool follow_parent)
    : store_(std::move(store)),
      ranks_(ranks),
      silence_(silence),
      parent_(follow_parent ? ::getppid() : 0),
      thread_([this] { watch(); }) {}

WEFT_INLINE void Watchdog::leaving() noexcept {
  {
    std::lock_guard const lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id()) thread_.join();
}

WEFT_INLINE void Watchdog::failed(std::string const& message, bool lost_peer) noexcept {
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

WEFT_INLINE void Watchdog::print(std::string const& message) noexcept {
  leaving();  // or this process would end by another's message before it has printed its own
  failure_is_printed() = true;
  bool printed = false;
  try {
    printed = printed_for_all(message);
  } catch (std::exception const&) {  // no store any more: everybody prints
  }
  if (!printed) std::cerr << message << std::endl;
}

WEFT_INLINE bool Watchdog::printed_for_all(std::string const& message) {
  CommonSentence const sentence(message, ranks_.global_rank, ranks_.world_size);
  auto const said = "weft/said/" + std::to_string(std::hash<std::string>()(sentence.form()));
  auto const said_by = [&said](int rank) { return said + "/" + std::to_string(rank); };
  auto const printed = said + "/printed";  // 'y' for each rank that was named, '.' for others
  store_->set(said_by(ranks_.global_rank), "yes");
  if (store_->add(said, 1) == 1) {
    std::this_thread::sleep_for(patience_for_alike);
    std::vector<int> ranks;
    std::string named(static_cast<std::size_t>(ranks_.world_size), '.');
    for (int rank = 0; rank < ranks_.world_size; ++rank)
      if (store_->check({said_by(rank)})) {
        ranks.push_back(rank);
        named[static_cast<std::size_t>(rank)] = 'y';
      }
    std::cerr << sentence.of(ranks) << std::endl;
    store_->set(printed, named);
    return true;
  }
  for (auto const until = Clock::now() + patience_after_loss; Clock::now() < until;
       std::this_thread::sleep_for(std::chrono::milliseconds(20)))
    if (store_->check({printed}))
      return store_->get_to_str(printed)[static_cast<std::size_t>(ranks_.global_rank)] == 'y';
  return false;
}

WEFT_INLINE std::vector<int> Watchdog::wait_for_cause() {
  store_->set(lost_key_of(ranks_.global_rank), "yes");
  store_->set(lost_key, "yes");
  for (auto const until = Clock::now() + patience_after_loss; Clock::now() < until && !store_->check({failed_key});)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::vector<int> elsewhere;
  for (int rank = 0; rank < ranks_.world_size; ++rank)
    if (!store_->check({lost_key_of(rank)}) && store_->add(alive_key(rank), 0) < gone / 2) elsewhere.push_back(rank);
  return elsewhere;
}

WEFT_INLINE std::string Watchdog::store_lost(std::string const& reason) const {
  if (launcher_is_gone()) return launcher_gone();
  return core::message(
      "weft: rank ", ranks_.global_rank, " of ", ranks_.world_size,
      ": lost the store where ranks meet, and with it rank 0 or the launcher: ", reason.substr(0, reason.find('\n')));
}

WEFT_INLINE void Watchdog::watch() {
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

WEFT_INLINE void report_failure(comm::FailureMonitor& failure_monitor, comm::RankInfo const& ranks) {
  auto const told = Processes::report_of_exception();
  auto const message = core::message("weft: rank ", ranks.global_rank, " of ", ranks.world_size,
                                     " failed: ", told.text);
  if (told.ending != Ending::lost_peer && inside_launched_function()) failure_monitor.print(message);
  failure_monitor.failed(message, told.ending == Ending::lost_peer);
}

WEFT_INLINE void report_at_terminate(std::weak_ptr<comm::FailureMonitor> failure_monitor, comm::RankInfo const& ranks) {
  static std::weak_ptr<comm::FailureMonitor> kept;
  static comm::RankInfo place;
  static auto const before = std::get_terminate();
  kept = std::move(failure_monitor);
  place = ranks;
  std::set_terminate([] {
    inside_launched_function() = false;  // what ends the program prints
    if (auto const alive = kept.lock(); alive && std::current_exception()) report_failure(*alive, place);
    before();
  });
}

}  // namespace weft::launch
