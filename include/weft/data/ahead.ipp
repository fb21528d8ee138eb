// data/ahead.ipp -- definitions of data/ahead.hpp.
#pragma once

#include <weft/data/ahead.hpp>

#include <utility>

#include <ATen/Parallel.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::data::detail {

WEFT_INLINE Ahead::Ahead(Pieces& pieces, std::size_t num_threads, std::size_t most) : pieces_(pieces), ring_(most) {
  // A worker computes on its own thread alone: LibTorch would give each of them a team as large as the machine. The
  // number of threads is set for the calling thread and for threads to come, so it is put back here after the workers
  // have taken it.
  int const usual = at::get_num_threads();
  std::latch ready(static_cast<std::ptrdiff_t>(num_threads));
  threads_.reserve(num_threads);
  try {
    for (std::size_t worker = 0; worker < num_threads; ++worker)
      threads_.emplace_back([this, worker, &ready] {
        if (at::get_num_threads() > 1)
          at::set_num_threads(1);  // asked first: a thread's first look takes the program's number
        ready.count_down();
        run(worker);
      });
  } catch (...) {
    stop();
    if (usual > 1) at::set_num_threads(usual);
    throw;
  }
  ready.wait();
  if (usual > 1) at::set_num_threads(usual);
}

WEFT_INLINE std::shared_ptr<void> Ahead::take(std::unique_lock<std::mutex>& lock) {
  if (here().failure) std::rethrow_exception(here().failure);  // also when asked again
  if (!here().result) return nullptr;
  Piece piece = std::exchange(here(), {});
  ++next_out_;
  lock.unlock();
  room_.notify_one();
  return std::move(piece.result);
}

WEFT_INLINE void Ahead::run(std::size_t worker) {
  while (true) {
    Piece piece;
    std::shared_ptr<void> work;
    std::size_t number = 0;
    {
      std::scoped_lock const in_order(drawing_);
      {
        std::unique_lock lock(mutex_);
        room_.wait(lock, [this] { return ended_ || next_in_ < next_out_ + ring_.size(); });
        if (ended_) return;
        number = next_in_++;
      }
      try {
        work = pieces_.draw(worker);
      } catch (...) {
        piece.failure = std::current_exception();
      }
      if (!work) end();
    }
    if (work) try {
        piece.result = pieces_.make(std::move(work), worker);
      } catch (...) {
        piece.failure = std::current_exception();
        end();  // later pieces will not be asked for
      }
    piece.done = true;
    {
      std::scoped_lock const lock(mutex_);
      ring_[number % ring_.size()] = std::move(piece);
    }
    made_.notify_one();
  }
}

}  // namespace weft::data::detail
