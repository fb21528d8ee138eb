// unit/root_activity.hpp -- whether a model is running.
// In: the wrapper's calls, nested ones too. Out: a yes or no that the model's units ask for.
#pragma once

#include <atomic>

namespace weft::inline v0::unit {

class RootActivity {
 public:
  // Held by the wrapper while the model, or another of its methods, runs.
  class [[nodiscard]] Scope {
   public:
    explicit Scope(RootActivity& activity) noexcept : activity_(activity) {
      activity_.depth_.fetch_add(1, std::memory_order_acq_rel);
    }
    ~Scope() { activity_.depth_.fetch_sub(1, std::memory_order_acq_rel); }
    Scope(Scope const&) = delete;
    Scope& operator=(Scope const&) = delete;

   private:
    RootActivity& activity_;
  };

  bool is_active() const noexcept { return depth() > 0; }
  int depth() const noexcept { return depth_.load(std::memory_order_acquire); }

 private:
  std::atomic<int> depth_ = 0;  // recomputation enters units on autograd's threads
};

}  // namespace weft::unit
