// comm/exchange.hpp -- a collective in which each rank sends the others what is theirs and combines what it receives.
// In: a backend's sends and receives, under way. Out: a c10d::Work that is done when all is combined.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace weft::inline v0::comm {

/// A thread for what nobody waits for. It starts when it is first needed, and ends when all was done.
class BackgroundThread {
 public:
  BackgroundThread() = default;
  BackgroundThread(BackgroundThread const&) = delete;
  BackgroundThread& operator=(BackgroundThread const&) = delete;
  ~BackgroundThread() {
    {
      std::lock_guard const lock(mutex_);
      closing_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  void add(std::function<void()> task);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool closing_ = false;
  std::thread thread_;
};

/// The transfers of one collective. Data moves without anybody's help; combining it is the work of whoever waits first.
///
/// [Note: transfers outlive their Work] A Gloo connection stalls when the buffer that it is to fill is gone. So an
/// Exchange that is dropped unfinished leaves its transfers to the backend's BackgroundThread, and so does one that is
/// asked isCompleted(), since a c10d receive only knows that it is done once somebody waited for it.
/// tests/comm/exchanges.cpp
class Exchange final : public c10d::Work {
 public:
  using Transfer = c10::intrusive_ptr<c10d::Work>;

  /// `combine(i)` is called for i = 0, 1, ... below `num_parts`, each as soon as the parts up to i are there.
  Exchange(int rank, c10d::OpType type, std::size_t num_parts, std::weak_ptr<BackgroundThread> background,
           std::function<void(std::size_t)> combine)
      : Work(rank, type), receives_(num_parts), background_(std::move(background)), combine_(std::move(combine)) {}
  ~Exchange() override {
    if (!Work::isCompleted()) leave(std::move(receives_), std::move(sends_));
  }

  void receive(std::size_t part, Transfer transfer) { receives_[part] = std::move(transfer); }
  void send(Transfer transfer) { sends_.push_back(std::move(transfer)); }

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;

  /// Completes when somebody has waited. Without a value: the tensors are the caller's.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  bool isCompleted() override;

 private:
  static void notify(c10::ivalue::Future& future, std::exception_ptr error) {
    error ? future.setError(error) : future.markCompleted();
  }

  void leave(std::vector<Transfer> receives, std::vector<Transfer> sends) noexcept;

  std::mutex waiting_;
  std::vector<Transfer> receives_, sends_;  // receives by part; null where this rank has the part itself
  std::weak_ptr<BackgroundThread>
      background_;  // not shared: the last owner of a BackgroundThread must not be its thread
  std::function<void(std::size_t)> combine_;
  bool asked_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // for who asks for one
};

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/exchange.ipp>
#endif
