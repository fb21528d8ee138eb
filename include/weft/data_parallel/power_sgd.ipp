// data_parallel/power_sgd.ipp -- definitions of data_parallel/power_sgd.hpp.
#pragma once

#include <weft/data_parallel/power_sgd.hpp>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::data_parallel {

WEFT_INLINE at::Tensor LowRank::operator()(c10d::GradBucket& bucket, comm::Communicator& ranks) {
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

WEFT_INLINE int64_t LowRank::elements_sent(std::vector<at::Tensor> const& gradients) const {
  int64_t elements = 0;
  for (auto const& gradient : gradients) {
    auto const [rows, columns] = matrix_of(gradient);
    elements += compresses(rows, columns) ? (rows + columns) * rank_of(rows, columns) : gradient.numel();
  }
  return elements;
}

WEFT_INLINE std::pair<int64_t, int64_t> LowRank::matrix_of(at::Tensor const& gradient) {
  auto const rows = gradient.dim() > 0 ? gradient.size(0) : 1;
  return {rows, rows > 0 ? gradient.numel() / rows : 0};
}

WEFT_INLINE at::Tensor LowRank::orthonormal_columns(at::Tensor const& matrix) {
  return matrix.size(1) == 1 ? matrix / matrix.norm().clamp_min(1e-30) : std::get<0>(at::linalg_qr(matrix));
}

WEFT_INLINE void LowRank::reduce_together(std::vector<at::Tensor>& tensors, comm::Communicator& ranks, ReduceOp op) {
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

WEFT_INLINE void LowRank::approximate(c10d::GradBucket& bucket, at::Tensor& buffer, comm::Communicator& ranks) {
  auto& state = states_[bucket.getIndex()];
  auto const gradients = bucket.getGradients();
  std::vector<int64_t> layout;
  for (auto const& gradient : gradients) layout.insert(layout.end(), gradient.sizes().begin(), gradient.sizes().end());
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
      state.guesses.push_back(
          at::randn({matrix.size(1), rank_of(matrix.size(0), matrix.size(1))}, generator, at::TensorOptions(at::kFloat))
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

}  // namespace weft::data_parallel
