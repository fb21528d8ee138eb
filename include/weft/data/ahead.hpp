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
#include <vector>

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
  Ahead(Pieces& pieces, std::size_t num_threads, std::size_t most);
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

  std::shared_ptr<void> take(std::unique_lock<std::mutex>& lock);

  void run(std::size_t worker);

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

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data/ahead.ipp>
#endif
