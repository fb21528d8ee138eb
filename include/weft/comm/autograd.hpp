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
//
// Where ranks divide the work on one batch, and all of them compute its one loss (tensor parallelism), gradients are
// those of that loss. Four pairs for where divided work begins and ends, named as in Megatron-LM (arXiv:1909.08053):
//
//   forward                                   backward
//   copy_to       x as it is                  the sum of all ranks' gradients
//   reduce_from   the sum of all ranks' x     the gradient as it is
//   scatter_to    this rank's part of a dim   the ranks' parts, one after another
//   gather_from   the ranks' parts of a dim   this rank's part
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/functions/utils.h>

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
at::Tensor apply(at::Tensor const& x, Function const& forward, Function backward);

inline void check_op(char const* call, ReduceOp op) {
  if (op != ReduceOp::sum && op != ReduceOp::average)
    fail<CommunicationError>("weft: autograd::", call,
                             ": only a sum and an average have a gradient here; reduce a detached tensor otherwise");
}
void check_rows(char const* call, at::Tensor const& x, Ranks const& ranks, bool divides);
/// `x`'s shape with another number of rows.
inline at::Tensor empty_rows(at::Tensor const& x, int64_t rows) {
  auto sizes = x.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, x.options());
}

}  // namespace detail

at::Tensor all_reduce(at::Tensor const& x, Ranks const& ranks, ReduceOp op = ReduceOp::sum);

at::Tensor reduce_scatter(at::Tensor const& x, Ranks const& ranks, ReduceOp op = ReduceOp::sum);

/// Ranks' rows one after another, in rank order; the same shape on all.
at::Tensor all_gather(at::Tensor const& x, Ranks const& ranks);

/// This rank's rows of the sum or average.
at::Tensor reduce_scatter(at::Tensor const& x, Ranks const& ranks, ReduceOp op);

/// The r-th equal part of the rows goes to rank r, whose part for this rank takes its place.
at::Tensor all_to_all(at::Tensor const& x, Ranks const& ranks);
/// With parts of `input_sizes[r]` rows for and `output_sizes[r]` rows from rank r.
at::Tensor all_to_all(at::Tensor const& x, Ranks const& ranks, std::vector<int64_t> const& output_sizes,
                      std::vector<int64_t> const& input_sizes);

/// Into divided work, and out of it. Dims may count from the end; the size of the dim divides by the ranks.
at::Tensor copy_to(at::Tensor const& x, Ranks const& ranks);
at::Tensor reduce_from(at::Tensor const& x, Ranks const& ranks);
at::Tensor scatter_to(at::Tensor const& x, Ranks const& ranks, int64_t dim = -1);
at::Tensor gather_from(at::Tensor const& x, Ranks const& ranks, int64_t dim = -1);

/// Rank `source`'s tensor; the same shape on all.
at::Tensor broadcast(at::Tensor const& x, Ranks const& ranks, int source = 0);

}  // namespace weft::autograd

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/autograd.ipp>
#endif
