// comm/autograd_node.ipp -- definitions of comm/autograd_node.hpp.
#pragma once

#include <weft/comm/autograd_node.hpp>
#include <weft/core/build.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE void set_accumulator(at::Tensor const& leaf, NodePtr const& node) {
  using Weak = std::remove_cvref_t<decltype(torch::autograd::impl::get_autograd_meta(leaf)->grad_accumulator_)>;
  torch::autograd::impl::set_grad_accumulator(leaf, Weak(node));
}

}  // namespace weft::comm
