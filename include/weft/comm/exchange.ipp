// comm/exchange.ipp -- definitions of comm/exchange.hpp.
#pragma once

#include <weft/comm/exchange.hpp>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE void BackgroundThread::add(std::function<void()> task) {
  {
    std::lock_guard const lock(mutex_);
    tasks_.push_back(std::move(task));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_one();
}

WEFT_INLINE void BackgroundThread::run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closing_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    auto const task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
  }
}

WEFT_INLINE bool Exchange::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(waiting_);
  if (!Work::isCompleted()) {
    std::exception_ptr error;
    try {
      for (std::size_t part = 0; part < receives_.size(); ++part) {
        if (receives_[part]) receives_[part]->wait(timeout);
        combine_(part);
      }
      for (auto const& transfer : sends_) transfer->wait(timeout);
    } catch (...) {
      error = std::current_exception();
    }
    receives_.clear();
    sends_.clear();
    combine_ = nullptr;  // and the tensors that it holds
    finish(error);
    auto const future = future_;
    lock.unlock();  // who hears of it may ask this Work again
    if (future) notify(*future, error);
  }
  if (auto const error = exception()) std::rethrow_exception(error);
  return true;
}

WEFT_INLINE c10::intrusive_ptr<c10::ivalue::Future> Exchange::getFuture() {
  std::lock_guard const lock(waiting_);
  if (!future_) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
    if (Work::isCompleted()) notify(*future_, exception());
  }
  return future_;
}

WEFT_INLINE bool Exchange::isCompleted() {
  if (Work::isCompleted()) return true;
  std::unique_lock const lock(waiting_, std::try_to_lock);
  if (!lock || std::exchange(asked_, true)) return Work::isCompleted();
  if (auto const background = background_.lock())
    background->add([self = c10::intrusive_ptr<Exchange>::unsafe_reclaim_from_nonowning(this)] {
      try {
        self->wait();
      } catch (...) {  // kept, for whoever asks
      }
    });
  return Work::isCompleted();
}

WEFT_INLINE void Exchange::leave(std::vector<Transfer> receives, std::vector<Transfer> sends) noexcept {
  auto const background = background_.lock();
  if (!background) return;
  background->add([receives = std::move(receives), sends = std::move(sends)] {
    for (auto const* transfers : {&receives, &sends})
      for (auto const& transfer : *transfers) try {
          if (transfer) transfer->wait();
        } catch (...) {  // nobody asked
        }
  });
}

}  // namespace weft::comm
