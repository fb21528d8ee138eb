// comm/autograd.hpp -- collectives that gradients go through.
// In: a tensor of each rank, and the ranks (fabric.world()). Out: the collective's result as a function of all ranks'
// tensors.
//
//   forward                            backward
//   all_reduce      sum or average     all_reduce, the same way
//   all_gather      along dim 0        reduce_scatter
//   reduce_scatter  along dim 0        all_gather
//   all_to_all      along dim 0        all_to_all
//   broadcast       from a source      the sum at the source, zero elsewhere
//
// What arrives is the gradient of the sum of all ranks' losses. The backward is a collective as well: every rank whose
// tensor requires a gradient must reach it, and in one order, so a rank's loss depends on each result (a term times 0
// is enough) and all ranks' inputs require a gradient or none does. Backward through backward works.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <weft/comm/autograd_node.hpp>
#include <weft/comm/communicator.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::autograd {

/// The group that a collective runs in; null is a group of one.
using Ranks = std::shared_ptr<comm::Communicator>;

namespace detail {

using Function = std::function<at::Tensor(at::Tensor const&)>;

struct Node final : torch::autograd::Node {
  explicit Node(Function it) : backward(std::move(it)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    // Other ranks take part, whether this one has a gradient or not.
    return {backward(gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like())};
  }
  Function backward;
};

/// `forward` of a dense copy of x, with `backward` for the gradient.
inline at::Tensor apply(at::Tensor const& x, Function const& forward, Function backward) {
  auto const y = [&] {
    at::NoGradGuard const no_grad;
    return forward(x.detach().resolve_conj().resolve_neg().contiguous());
  }();
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return y;
  auto const node = comm::make_node<Node>(std::move(backward));
  node->add_next_edge(torch::autograd::impl::gradient_edge(x));
  torch::autograd::set_history(y, node);
  return y;
}

inline void check_op(char const* call, ReduceOp op) {
  if (op != ReduceOp::sum && op != ReduceOp::average)
    fail<CommunicationError>("weft: autograd::", call,
                             ": only a sum and an average have a gradient here; reduce a detached tensor otherwise");
}
inline void check_rows(char const* call, at::Tensor const& x, Ranks const& ranks, bool divides) {
  if (x.dim() == 0) fail<CommunicationError>("weft: autograd::", call, ": a tensor without dims; pass x.reshape({1})");
  if (divides && ranks && x.size(0) % ranks->size() != 0)
    fail<CommunicationError>("weft: autograd::", call, ": ", x.size(0), " rows over ", ranks->size(),
                             " ranks; the first size must be a multiple of the ranks");
}
/// `x`'s shape with another number of rows.
inline at::Tensor empty_rows(at::Tensor const& x, int64_t rows) {
  auto sizes = x.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, x.options());
}

}  // namespace detail

inline at::Tensor all_reduce(at::Tensor const& x, Ranks const& ranks, ReduceOp op = ReduceOp::sum) {
  detail::check_op("all_reduce", op);
  return detail::apply(
      x,
      [&](at::Tensor const& dense) {
        auto const y = dense.clone();
        if (ranks) ranks->all_reduce(y, op);
        return y;
      },
      [ranks, op](at::Tensor const& g) { return all_reduce(g, ranks, op); });
}

inline at::Tensor reduce_scatter(at::Tensor const& x, Ranks const& ranks, ReduceOp op = ReduceOp::sum);

/// Ranks' rows one after another, in rank order; the same shape on all.
inline at::Tensor all_gather(at::Tensor const& x, Ranks const& ranks) {
  detail::check_rows("all_gather", x, ranks, /*divides=*/false);
  return detail::apply(
      x,
      [&](at::Tensor const& dense) {
        if (!ranks) return dense.clone();
        auto const y = detail::empty_rows(dense, dense.size(0) * ranks->size());
        ranks->all_gather_into(y, dense);
        return y;
      },
      [ranks](at::Tensor const& g) { return reduce_scatter(g, ranks); });
}

/// This rank's rows of the sum or average.
inline at::Tensor reduce_scatter(at::Tensor const& x, Ranks const& ranks, ReduceOp op) {
  detail::check_op("reduce_scatter", op);
  detail::check_rows("reduce_scatter", x, ranks, /*divides=*/true);
  return detail::apply(
      x,
      [&](at::Tensor const& dense) {
        if (!ranks) return dense.clone();
        auto const y = detail::empty_rows(dense, dense.size(0) / ranks->size());
        ranks->reduce_scatter_into(y, dense.scalar_type() == at::kHalf ? dense.clone() : dense,
                                   op);  // averages of fp16 scale their input
        return y;
      },
      [ranks, op](at::Tensor const& g) {
        auto const whole = all_gather(g, ranks);
        return op == ReduceOp::average && ranks ? whole / ranks->size() : whole;
      });
}

/// The r-th equal part of the rows goes to rank r, whose part for this rank takes its place.
inline at::Tensor all_to_all(at::Tensor const& x, Ranks const& ranks) {
  detail::check_rows("all_to_all", x, ranks, /*divides=*/true);
  return detail::apply(
      x,
      [&](at::Tensor const& dense) {
        if (!ranks) return dense.clone();
        auto const y = at::empty_like(dense);
        ranks->all_to_all_into(y, dense);
        return y;
      },
      [ranks](at::Tensor const& g) { return all_to_all(g, ranks); });
}
/// With parts of `input_sizes[r]` rows for and `output_sizes[r]` rows from rank r.
inline at::Tensor all_to_all(at::Tensor const& x, Ranks const& ranks, std::vector<int64_t> const& output_sizes,
                             std::vector<int64_t> const& input_sizes) {
  detail::check_rows("all_to_all", x, ranks, /*divides=*/false);
  return detail::apply(
      x,
      [&](at::Tensor const& dense) {
        if (!ranks) return dense.clone();
        int64_t rows = 0;
        for (auto const count : output_sizes) rows += count;
        auto const y = detail::empty_rows(dense, rows);
        ranks->all_to_all_into(y, dense, output_sizes, input_sizes);
        return y;
      },
      [=](at::Tensor const& g) { return all_to_all(g, ranks, input_sizes, output_sizes); });
}

/// Rank `source`'s tensor; the same shape on all.
inline at::Tensor broadcast(at::Tensor const& x, Ranks const& ranks, int source = 0) {
  return detail::apply(
      x,
      [&](at::Tensor const& dense) {
        auto const y = dense.clone();
        if (ranks) ranks->broadcast(y, source);
        return y;
      },
      [ranks, source](at::Tensor const& g) {
        auto const sum = all_reduce(g, ranks);
        return !ranks || ranks->rank() == source ? sum
                                                 : sum.masked_fill(at::ones({}, sum.options().dtype(at::kBool)),
                                                                   0);  // also where the sum is not finite
      });
}

}  // namespace weft::autograd
