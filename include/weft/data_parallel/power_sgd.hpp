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

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <weft/comm/communicator.hpp>
#include <weft/data_parallel/hooks.hpp>
#include <weft/strategy/schedule.hpp>

namespace weft::inline v0::data_parallel {

class LowRank {
 public:
  LowRank(int rank, int start_iter, double min_compression_rate = 2)
      : rank_(rank), start_iter_(start_iter), min_rate_(min_compression_rate) {}

  at::Tensor operator()(c10d::GradBucket& bucket, comm::Communicator& ranks) {
    at::NoGradGuard const no_grad;
    auto buffer = bucket.getBufferRef();
    if (step_ < start_iter_) {  // early gradients change too fast for one power iteration to follow
      ranks.all_reduce(buffer, ReduceOp::average);
    } else {
      approximate(bucket, buffer, ranks);
    }
    if (bucket.isLast()) ++step_;
    return buffer;
  }

  /// Elements of a bucket with these matrices that travel once compression has begun: for tests and estimates.
  int64_t elements_sent(std::vector<at::Tensor> const& gradients) const {
    int64_t elements = 0;
    for (auto const& gradient : gradients) {
      auto const [rows, columns] = matrix_of(gradient);
      elements += compresses(rows, columns) ? (rows + columns) * rank_of(rows, columns) : gradient.numel();
    }
    return elements;
  }

 private:
  struct State {
    std::vector<int64_t> layout;      // sizes of the bucket's gradients: buckets are rebuilt once, in another order
    at::Tensor error;                 // what the approximation left out, this rank's own
    std::vector<at::Tensor> guesses;  // Q of the last step: the power iteration starts warm
  };

  static std::pair<int64_t, int64_t> matrix_of(at::Tensor const& gradient) {
    auto const rows = gradient.dim() > 0 ? gradient.size(0) : 1;
    return {rows, rows > 0 ? gradient.numel() / rows : 0};
  }
  int64_t rank_of(int64_t rows, int64_t columns) const {
    return std::min({rows, columns, static_cast<int64_t>(rank_)});
  }
  bool compresses(int64_t rows, int64_t columns) const {
    return static_cast<double>(rows + columns) * static_cast<double>(rank_of(rows, columns)) * min_rate_ <
           static_cast<double>(rows * columns);
  }

  static at::Tensor orthonormal_columns(at::Tensor const& matrix) {
    return matrix.size(1) == 1 ? matrix / matrix.norm().clamp_min(1e-30) : std::get<0>(at::linalg_qr(matrix));
  }
  /// One all-reduce for a list of tensors.
  static void reduce_together(std::vector<at::Tensor>& tensors, comm::Communicator& ranks, ReduceOp op) {
    if (tensors.empty()) return;
    std::vector<at::Tensor> flat;
    for (auto const& tensor : tensors) flat.push_back(tensor.reshape({-1}));
    auto packed = at::cat(flat);
    ranks.all_reduce(packed, op);
    int64_t offset = 0;
    for (auto& tensor : tensors) {
      tensor.copy_(packed.narrow(0, offset, tensor.numel()).view_as(tensor));
      offset += tensor.numel();
    }
  }

  /// [Note: after an overflow] One rank's infinity is in every rank's Q. It goes on into the gradients, where a loss
  /// scaler finds it, but what is remembered of the step would bring it back in each later one: the error of that
  /// matrix is forgotten, and its last guess kept, on all ranks alike and without asking the device.
  /// tests/data_parallel/hooks.cpp
  void approximate(c10d::GradBucket& bucket, at::Tensor& buffer, comm::Communicator& ranks) {
    auto& state = states_[bucket.getIndex()];
    auto const gradients = bucket.getGradients();
    std::vector<int64_t> layout;
    for (auto const& gradient : gradients)
      layout.insert(layout.end(), gradient.sizes().begin(), gradient.sizes().end());
    if (!state.error.defined() || state.layout != layout) state = {std::move(layout), at::zeros_like(buffer), {}};
    buffer.add_(state.error);
    state.error.copy_(buffer);

    std::vector<at::Tensor> plain, matrices, ps, qs;
    for (auto const& gradient : gradients) {
      auto const [rows, columns] = matrix_of(gradient);
      if (compresses(rows, columns))
        matrices.push_back(gradient.view({rows, columns}));
      else
        plain.push_back(gradient);
    }
    if (state.guesses.size() != matrices.size()) {
      state.guesses.clear();
      // The same guess on every rank: a generator of its own, seeded by the step and bucket alone.
      auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step_) * 1000003u + bucket.getIndex());
      for (auto const& matrix : matrices)
        state.guesses.push_back(at::randn({matrix.size(1), rank_of(matrix.size(0), matrix.size(1))}, generator,
                                          at::TensorOptions(at::kFloat))
                                    .to(matrix.options()));
    }
    reduce_together(plain, ranks, ReduceOp::average);
    for (std::size_t i = 0; i < matrices.size(); ++i)
      ps.push_back(at::matmul(matrices[i], orthonormal_columns(state.guesses[i])));
    reduce_together(ps, ranks, ReduceOp::sum);  // P is made orthonormal next, so its scale does not matter
    auto const error_of = [&](at::Tensor const& gradient) {
      return state.error.narrow(0, gradient.storage_offset() - buffer.storage_offset(), gradient.numel())
          .view_as(gradient);
    };
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      ps[i] = orthonormal_columns(ps[i]);
      qs.push_back(at::matmul(matrices[i].t(), ps[i]));
      error_of(matrices[i])
          .sub_(at::matmul(ps[i], qs[i].t()));  // what this rank's own gradient lacks in the common subspace
    }
    for (auto const& gradient : plain) error_of(gradient).zero_();
    reduce_together(qs, ranks, ReduceOp::average);
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      at::matmul_out(matrices[i], ps[i], qs[i].t());
      // See [Note: after an overflow].
      auto const is_finite = at::isfinite(qs[i]).all();
      auto error = error_of(matrices[i]);
      error.copy_(at::where(is_finite, error, at::zeros_like(error)));
      state.guesses[i] = at::where(is_finite, qs[i], state.guesses[i]);
    }
  }

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
