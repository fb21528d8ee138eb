// comm/autograd.ipp -- definitions of comm/autograd.hpp.
#pragma once

#include <weft/comm/autograd.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <weft/comm/autograd_node.hpp>
#include <weft/core/build.hpp>

namespace weft::inline v0::autograd::detail {

WEFT_INLINE at::Tensor apply(at::Tensor const& x, Function const& forward, Function backward) {
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

WEFT_INLINE void check_rows(char const* call, at::Tensor const& x, Ranks const& ranks, bool divides) {
  if (x.dim() == 0) fail<CommunicationError>("weft: autograd::", call, ": a tensor without dims; pass x.reshape({1})");
  if (divides && ranks && x.size(0) % ranks->size() != 0)
    fail<CommunicationError>("weft: autograd::", call, ": ", x.size(0), " rows over ", ranks->size(),
                             " ranks; the first size must be a multiple of the ranks");
}

}  // namespace weft::autograd::detail

namespace weft::inline v0::autograd {

WEFT_INLINE at::Tensor all_reduce(at::Tensor const& x, Ranks const& ranks, ReduceOp op) {
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

WEFT_INLINE at::Tensor all_gather(at::Tensor const& x, Ranks const& ranks) {
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

WEFT_INLINE at::Tensor reduce_scatter(at::Tensor const& x, Ranks const& ranks, ReduceOp op) {
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

WEFT_INLINE at::Tensor all_to_all(at::Tensor const& x, Ranks const& ranks) {
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

WEFT_INLINE at::Tensor all_to_all(at::Tensor const& x, Ranks const& ranks, std::vector<int64_t> const& output_sizes,
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

WEFT_INLINE at::Tensor copy_to(at::Tensor const& x, Ranks const& ranks) {
  if (!ranks) return x;
  return detail::apply(
      x, [](at::Tensor const& dense) { return dense; }, [ranks](at::Tensor const& g) { return reduce_from(g, ranks); });
}

WEFT_INLINE at::Tensor reduce_from(at::Tensor const& x, Ranks const& ranks) {
  if (!ranks) return x;
  return detail::apply(
      x,
      [&](at::Tensor const& dense) {
        auto const y = dense.clone();
        ranks->all_reduce(y, ReduceOp::sum);
        return y;
      },
      [ranks](at::Tensor const& g) { return copy_to(g, ranks); });
}

WEFT_INLINE at::Tensor scatter_to(at::Tensor const& x, Ranks const& ranks, int64_t dim) {
  detail::check_rows("scatter_to", x, ranks, /*divides=*/false);
  if (!ranks) return x;
  if (x.size(dim) % ranks->size() != 0)
    fail<CommunicationError>("weft: autograd::scatter_to: dim ", dim, " of size ", x.size(dim), " over ", ranks->size(),
                             " ranks; the size must be a multiple of the ranks");
  return detail::apply(
      x,
      [&](at::Tensor const& dense) {
        auto const size = dense.size(dim) / ranks->size();
        return dense.narrow(dim, ranks->rank() * size, size).clone(at::MemoryFormat::Contiguous);
      },
      [ranks, dim](at::Tensor const& g) { return gather_from(g, ranks, dim); });
}

WEFT_INLINE at::Tensor gather_from(at::Tensor const& x, Ranks const& ranks, int64_t dim) {
  detail::check_rows("gather_from", x, ranks, /*divides=*/false);
  if (!ranks) return x;
  return detail::apply(
      x,
      [&](at::Tensor const& dense) {
        auto const rows = detail::empty_rows(dense, dense.size(0) * ranks->size());
        ranks->all_gather_into(rows, dense);
        return dim == 0 || dim == -dense.dim() ? rows : at::cat(rows.chunk(ranks->size(), 0), dim);
      },
      [ranks, dim](at::Tensor const& g) { return scatter_to(g, ranks, dim); });
}

WEFT_INLINE at::Tensor broadcast(at::Tensor const& x, Ranks const& ranks, int source) {
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
