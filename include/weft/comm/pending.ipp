// comm/pending.ipp -- definitions of comm/pending.hpp.
#pragma once

#include <weft/comm/pending.hpp>

#include <utility>

#include <weft/comm/streams.hpp>
#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE Pending::Pending(c10::intrusive_ptr<c10d::Work> work, std::string what, std::vector<at::Tensor> tensors,
                             std::function<void()> finish, std::chrono::milliseconds limit)
    : work_(std::move(work)),
      what_(std::move(what)),
      tensors_(std::move(tensors)),
      finish_(std::move(finish)),
      limit_(limit) {}

WEFT_INLINE Pending::Pending(Pending&& other) noexcept
    : work_(std::exchange(other.work_, nullptr)),
      what_(std::move(other.what_)),
      tensors_(std::move(other.tensors_)),
      finish_(std::exchange(other.finish_, nullptr)),
      limit_(other.limit_),
      error_(std::move(other.error_)) {}

WEFT_INLINE Pending& Pending::operator=(Pending&& other) noexcept {
  if (this != &other) {
    abandon();
    work_ = std::exchange(other.work_, nullptr);
    what_ = std::move(other.what_);
    tensors_ = std::move(other.tensors_);
    finish_ = std::exchange(other.finish_, nullptr);
    limit_ = other.limit_;
    error_ = std::move(other.error_);
  }
  return *this;
}

WEFT_INLINE void Pending::wait() {
  if (!error_.empty()) fail<CommunicationError>(error_);
  if (!work_) return;
  auto const work = std::exchange(work_, nullptr);
  try {
    work->wait(limit_);
    if (auto const finish = std::exchange(finish_, nullptr)) finish();
  } catch (std::exception const& error) {
    finish_ = nullptr;
    tensors_.clear();
    error_ = core::message("weft: ", what_, ": ", first_line(error.what()),
                           limit_.count() > 0 ? core::message(" (limit ", limit_.count(), " ms)") : "");
    fail<CommunicationError>(error_);
  }
  for (auto const& tensor : tensors_) used_on_current_stream(tensor);  // see [Note: memory belongs to a stream]
  tensors_.clear();
}

}  // namespace weft::comm
