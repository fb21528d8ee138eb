// comm/autograd_node.hpp -- autograd nodes, whichever pointer LibTorch holds them by.
// In: a node type of ours, or a leaf. Out: the node, and the accumulator that a leaf's gradients go to.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <weft/core/error.hpp>

namespace weft::inline v0::comm {

/// A shared_ptr before torch 2.15, an intrusive_ptr from then on.
using NodePtr = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor const&>()));

template <class Node, class... Arguments>
auto make_node(Arguments&&... arguments) {
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 215
  return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
#else
  return std::shared_ptr<Node>(new Node(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode);
#endif
}

/// An error where a gradient arrives.
struct RefuseGradient final : torch::autograd::Node {
  explicit RefuseGradient(std::string text) : message(std::move(text)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { fail<Error>(message); }
  std::string message;
};

/// Sends the gradients of uses from now on to `node`, which the caller keeps alive.
void set_accumulator(at::Tensor const& leaf, NodePtr const& node);

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/autograd_node.ipp>
#endif
