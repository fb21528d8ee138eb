// data_parallel/power_sgd.hpp -- gradients as low-rank products.
// In: a bucket of gradients. Out: its average, each matrix approximated as P Q^T with the error kept for the next step.
// Source: Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank Gradient Compression", NeurIPS 2019; start_iter,
// compression threshold and warm start as in PyTorch's hook.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <weft/comm/communicator.hpp>
#include <weft/data_parallel/hooks.hpp>
#include <weft/strategy/schedule.hpp>

namespace weft::inline v0::data_parallel {

class LowRank {
 public:
  LowRank(int rank, int start_iter, double min_compression_rate = 2)
      : rank_(rank), start_iter_(start_iter), min_rate_(min_compression_rate) {}

  at::Tensor operator()(c10d::GradBucket& bucket, comm::Communicator& ranks);

  /// Elements of a bucket with these matrices that travel once compression has begun: for tests and estimates.
  int64_t elements_sent(std::vector<at::Tensor> const& gradients) const;

 private:
  struct State {
    std::vector<int64_t> layout;      // sizes of the bucket's gradients: buckets are rebuilt once, in another order
    at::Tensor error;                 // what the approximation left out, this rank's own
    std::vector<at::Tensor> guesses;  // Q of the last step: the power iteration starts warm
  };

  static std::pair<int64_t, int64_t> matrix_of(at::Tensor const& gradient);
  int64_t rank_of(int64_t rows, int64_t columns) const {
    return std::min({rows, columns, static_cast<int64_t>(rank_)});
  }
  bool compresses(int64_t rows, int64_t columns) const {
    return static_cast<double>(rows + columns) * static_cast<double>(rank_of(rows, columns)) * min_rate_ <
           static_cast<double>(rows * columns);
  }

  static at::Tensor orthonormal_columns(at::Tensor const& matrix);
  /// One all-reduce for a list of tensors.
  static void reduce_together(std::vector<at::Tensor>& tensors, comm::Communicator& ranks, ReduceOp op);

  /// [Note: after an overflow] One rank's infinity is in every rank's Q. It goes on into the gradients, where a loss
  /// scaler finds it, but what is remembered of the step would bring it back in each later one: the error of that
  /// matrix is forgotten, and its last guess kept, on all ranks alike and without asking the device.
  /// tests/data_parallel/hooks.cpp
  void approximate(c10d::GradBucket& bucket, at::Tensor& buffer, comm::Communicator& ranks);

  int rank_;
  int start_iter_;
  double min_rate_;
  int64_t step_ = 0;
  std::unordered_map<std::size_t, State> states_;
};

template <int Rank, int StartIter>
struct HookOf<PowerSGD<Rank, StartIter>> {
  struct type : LowRank {
    static_assert(Rank >= 1, "weft: PowerSGD<rank, start_iter>: rank must be at least 1");
    type() : LowRank(Rank, StartIter) {}
  };
};

}  // namespace weft::data_parallel

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data_parallel/power_sgd.ipp>
#endif
