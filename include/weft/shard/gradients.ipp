// shard/gradients.ipp -- definitions of shard/gradients.hpp.
#pragma once

#include <weft/shard/gradients.hpp>

#include <algorithm>
#include <utility>

#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/zeros_like.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/core/memory_tag.hpp>

namespace weft::inline v0::shard {

WEFT_INLINE void Gradients::check_uses(std::unordered_set<torch::autograd::Node*> const& nodes) const {
  for (auto const& m : flat_.members)
    if (m.outside && m.outside.use_count() > 1 && nodes.contains(m.outside.get()))
      fail<Error>(static_cast<comm::RefuseGradient const&>(*m.outside).message);
}

WEFT_INLINE void Gradients::open() {
  for (auto& m : flat_.members) {
    auto const grad = std::exchange(m.parameter.mutable_grad(), at::Tensor());
    if (m.holds) m.holds = !was_zeroed(m, grad);
    m.held = m.holds;
    if (!m.shows_sum)
      m.before = grad;
    else if (!m.holds && grad.defined())  // zeroed in place: zeros, not nothing
      m.before = grad.clone();            // and no view of the next sum
    m.shows_sum = false;
    m.shown.reset();
  }
  if (!holds()) drop();
}

WEFT_INLINE void Gradients::take(Member& m, bool keeps) {
  BelowAutograd const below;
  auto grad = std::exchange(m.parameter.mutable_grad(), at::Tensor());
  if (grad.layout() != at::kStrided)
    fail<Error>("weft: parameter ", m.name, " has a gradient of layout ", grad.layout(),
                ", which cannot be sharded: build the embedding without sparse(true)");
  bool const owns = grad.storage().nbytes() == grad.nbytes();  // else it would keep what it is a part of
  if (keeps && owns && flat_.is_cut() && !sums_.defined()) {
    core::retag(grad.storage().data(), MemoryTag::reduce);
    m.arrived = std::move(grad);
  } else {
    provide();
    if (m.holds)
      m.gradient.add_(grad);
    else
      m.gradient.copy_(grad);
  }
  m.holds = true;
}

WEFT_INLINE void Gradients::in_one_piece() {
  BelowAutograd const below;
  if (holds()) provide();
}

WEFT_INLINE bool Gradients::is_trained() const {
  return std::any_of(flat_.members.begin(), flat_.members.end(),
                     [](Member const& m) { return m.parameter.requires_grad() || m.holds; });
}

WEFT_INLINE bool Gradients::holds() const {
  return std::any_of(flat_.members.begin(), flat_.members.end(), [](Member const& m) { return m.holds; });
}

WEFT_INLINE void Gradients::start_reduce() {
  BelowAutograd const below;
  provide();
  for (auto& m : flat_.members)
    if (!m.holds) m.gradient.zero_();
  if (flat_.layout.padding() > 0) sums_.narrow(0, flat_.layout.total(), flat_.layout.padding()).zero_();
  if (flat_.is_cut()) {
    reduced_ = empty(flat_.layout.chunk(), sums_.options(),
                     flat_.reduces_in_place() ? MemoryTag::gradients : MemoryTag::reduce);
    Tagged const tag(MemoryTag::reduce);
    reduce_ = flat_.axes.shard->reduce_scatter_into_async(reduced_, sums_, ReduceOp::average, flat_.what);
  } else {
    reduced_ = sums_;
    if (flat_.axes.replicate && flat_.layout.total() > 0)
      reduce_ = flat_.axes.replicate->all_reduce_async(reduced_, ReduceOp::average, flat_.what);
  }
}

WEFT_INLINE void Gradients::reduce_over_replicas() {
  if (!flat_.is_cut() || !flat_.axes.replicate || !reduced_.defined() || !sums_.defined())
    return;  // a frozen group beside trained ones, or done already
  BelowAutograd const below;
  reduce_.wait();
  drop();
  reduce_ = flat_.axes.replicate->all_reduce_async(reduced_, ReduceOp::average, flat_.what);
}

WEFT_INLINE void Gradients::finish_reduce() {
  BelowAutograd const below;
  reduce_.wait();
  drop();
  if (!flat_.reduces_in_place() && reduced_.defined()) {
    auto const handed_out = empty(reduced_.numel(), flat_.shard.options(), MemoryTag::gradients).copy_(reduced_);
    recycle_storage(std::exchange(reduced_, handed_out), MemoryTag::reduce, *flat_.pool);
  }
  // Not views, as far as autograd knows: torch::optim's zero_grad() detaches gradients in place.
  for (std::size_t i = 0; i < flat_.members.size(); ++i) {
    auto& m = flat_.members[i];
    if (!m.holds) continue;
    m.holds = false;
    auto part = flat_.part_of(reduced_, i);
    if (m.before.defined())
      m.before.add_(part);
    else
      m.before = std::move(part);
  }
  reduced_.reset();
}

WEFT_INLINE void Gradients::close() {
  BelowAutograd const below;
  for (std::size_t i = 0; i < flat_.members.size(); ++i) {
    auto& m = flat_.members[i];
    auto& grad = m.parameter.mutable_grad();
    grad = std::exchange(m.before, at::Tensor());
    if (!m.holds) continue;
    m.shows_sum = !grad.defined();
    if (m.shows_sum) grad = flat_.part_of(flat_.own_chunk(sums_), i).to(flat_.shard.scalar_type());
    m.version = grad._version();
    m.shown = grad;
  }
}

WEFT_INLINE bool Gradients::scale(at::Tensor const& parameter, at::Tensor const& factor) {
  auto const m = std::find_if(flat_.members.begin(), flat_.members.end(),
                              [&](Member const& member) { return member.parameter.is_same(parameter); });
  if (m == flat_.members.end()) return false;
  BelowAutograd const below;
  auto const grad = m->parameter.grad();
  if (m->gradient.defined()) m->gradient.mul_(factor.to(m->gradient.device()));
  if (grad.defined() && !(m->gradient.defined() && grad.is_alias_of(sums_))) grad.mul_(factor.to(grad.device()));
  return true;
}

WEFT_INLINE void Gradients::restore() {
  BelowAutograd const below;
  for (auto& m : flat_.members) {
    auto& grad = m.parameter.mutable_grad();
    grad = std::exchange(m.before, at::Tensor());
    if (m.held && !grad.defined()) grad = at::zeros_like(m.part);
  }
}

WEFT_INLINE void Gradients::abandon() {
  reduce_ = {};
  reduced_.reset();
  drop();
  for (auto& m : flat_.members) {
    auto& grad = m.parameter.mutable_grad();
    if (m.before.defined() ||
        (grad.defined() && (grad.sizes() != m.part.sizes() || grad.scalar_type() != m.part.scalar_type())))
      grad = m.before;
    if (m.held && !grad.defined()) grad = at::zeros_like(m.part);
    m.before.reset();
    m.holds = m.held = m.shows_sum = false;
  }
}

WEFT_INLINE bool Gradients::was_zeroed(Member const& m, at::Tensor const& grad) const {
  if (!grad.defined()) return true;
  if (grad.is_same(m.shown) && grad._version() == m.version) return false;
  auto const nonzero = grad.count_nonzero().reshape({1});
  if (flat_.is_cut()) flat_.axes.shard->all_reduce(nonzero, ReduceOp::max, flat_.what);
  if (nonzero.item<int64_t>() == 0) return true;
  if (m.shows_sum)
    fail<Error>(
        "weft: the gradient of parameter ", m.name,
        " was changed in place before it was reduced; synchronize a backward pass first, or change it in a hook");
  return false;
}

WEFT_INLINE void Gradients::provide() {
  if (sums_.defined()) return;
  auto const tag = flat_.is_cut() || !flat_.reduces_in_place() ? MemoryTag::reduce : MemoryTag::gradients;
  sums_ = empty(flat_.layout.padded(), flat_.shard.options().dtype(flat_.dtypes.reduced), tag, flat_.pool);
  for (std::size_t i = 0; i < flat_.members.size(); ++i)
    flat_.members[i].gradient = flat_.slice(sums_, i).as_strided(flat_.members[i].shape, flat_.members[i].strides);
  for (auto& m : flat_.members)
    if (m.arrived.defined()) m.gradient.copy_(std::exchange(m.arrived, at::Tensor()));
}

WEFT_INLINE void Gradients::drop() {
  for (auto& m : flat_.members) {
    m.gradient.reset();
    m.arrived.reset();
  }
  recycle(std::exchange(sums_, at::Tensor()), MemoryTag::reduce, *flat_.pool);
}

}  // namespace weft::shard
