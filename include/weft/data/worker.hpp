// data/worker.hpp -- what code that reads samples may ask.
// In: nothing. Out: which worker this is, and random numbers that do not depend on how many there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <weft/core/error.hpp>

namespace weft::inline v0::data {

// [Note: random numbers in workers] LibTorch's default generator belongs to all threads: what a worker draws from it
// would depend on what the others draw, and would change what the model draws. A worker's own generator is seeded anew
// for each batch, from the loader's seed, the epoch and the batch's place in it. So augmentation is the same with any
// number of workers, and after a resume; ranks differ.
struct Worker {
  std::size_t id = 0;
  std::size_t count = 0;  // 0: the loop's own thread reads
  std::size_t rank = 0;
  std::uint64_t seed =
      0;  // of this worker, in this epoch, as core/seeds.hpp has it: for libraries with a state of their own

  at::Generator& generator() {
    if (!generator_) generator_ = at::detail::createCPUGenerator(batch_seed_);
    return *generator_;
  }
  void begin_batch(std::uint64_t seed) {
    batch_seed_ = seed;
    generator_.reset();
  }

 private:
  std::uint64_t batch_seed_ = 0;
  std::optional<at::Generator> generator_;
};

namespace detail {

[[gnu::visibility("default")]] inline constinit thread_local Worker* this_worker = nullptr;

class WorkerScope {
 public:
  explicit WorkerScope(Worker& worker) : before_(std::exchange(this_worker, &worker)) {}
  ~WorkerScope() { this_worker = before_; }
  WorkerScope(WorkerScope const&) = delete;
  WorkerScope& operator=(WorkerScope const&) = delete;

 private:
  Worker* before_;
};

}  // namespace detail

// The worker on whose behalf this code runs: in a dataset's get and next, in transforms, and in collate.
//   at::Tensor get(std::size_t index) const { return image(index) + 0.1 * at::randn({3, 32, 32},
//   weft::data::this_worker().generator()); }
inline Worker& this_worker() {
  if (!detail::this_worker)
    fail<Error>(
        "weft: this_worker() was called outside of a loader: it is there for code that reads samples or collates them");
  return *detail::this_worker;
}
inline bool in_worker() { return detail::this_worker != nullptr; }

}  // namespace weft::data
