// data/ahead.hpp -- batches are made by threads before they are asked for.
// In: work that is drawn in order and done by anyone. Out: its results, in that order, so many ahead at most; what a
// thread throws is thrown here.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <latch>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

namespace weft::inline v0::data::detail {

class Pieces {
 public:
  virtual ~Pieces() = default;
  // The next piece of work, in order: by one thread at a time. Null: there is none, and won't be.
  virtual std::shared_ptr<void> draw(std::size_t worker) = 0;
  // Does it: by any number of threads at once.
  virtual std::shared_ptr<void> make(std::shared_ptr<void> work, std::size_t worker) = 0;
};

// The threads start here and end with the object, which waits for the pieces that are being made.
class Ahead {
 public:
  Ahead(Pieces& pieces, std::size_t num_threads, std::size_t most) : pieces_(pieces), ring_(most) {
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
  ~Ahead() { stop(); }
  Ahead(Ahead const&) = delete;
  Ahead& operator=(Ahead const&) = delete;

  // Waits for the next result; null at the end.
  std::shared_ptr<void> next() {
    std::unique_lock lock(mutex_);
    made_.wait(lock, [this] { return here().done; });
    return take(lock);
  }
  // Whether next() gives one without waiting.
  bool has_result() {
    std::scoped_lock const lock(mutex_);
    return here().done && here().result;
  }

 private:
  struct Piece {
    std::shared_ptr<void> result;
    std::exception_ptr failure;
    bool done = false;
  };

  Piece& here() { return ring_[next_out_ % ring_.size()]; }

  std::shared_ptr<void> take(std::unique_lock<std::mutex>& lock) {
    if (here().failure) std::rethrow_exception(here().failure);  // also when asked again
    if (!here().result) return nullptr;
    Piece piece = std::exchange(here(), {});
    ++next_out_;
    lock.unlock();
    room_.notify_one();
    return std::move(piece.result);
  }

  void run(std::size_t worker) {
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

  void end() {
    {
      std::scoped_lock const lock(mutex_);
      ended_ = true;
    }
    room_.notify_all();
  }
  void stop() {
    end();
    for (auto& thread : threads_) thread.join();
  }

  Pieces& pieces_;
  std::mutex drawing_;  // held while a piece is drawn, so that pieces are numbered as they are drawn
  std::mutex mutex_;    // of all below
  std::condition_variable room_, made_;
  std::vector<Piece> ring_;
  std::size_t next_in_ = 0;
  std::size_t next_out_ = 0;
  bool ended_ = false;  // nothing more is drawn
  std::vector<std::thread> threads_;
};

}  // namespace weft::data::detail
