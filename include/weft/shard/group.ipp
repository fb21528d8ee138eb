// shard/group.ipp -- definitions of shard/group.hpp.
#pragma once

#include <weft/shard/group.hpp>

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/core/memory_tag.hpp>
#include <weft/init/deferred_storage.hpp>
#include <weft/model/parameter_table.hpp>

namespace weft::inline v0::shard {

WEFT_INLINE Group::Group(std::vector<Member> members, Axes const& axes, at::ScalarType kept, Dtypes dtypes,
                         std::string const& what, GradientListener& listener, BufferPool& pool)
    : axes_(axes),
      dtypes_(dtypes),
      members_(std::move(members)),
      layout_(numels(members_), axes.num_shards()),
      what_(what),
      listener_(&listener),
      pool_(&pool) {
  BelowAutograd const below;
  auto const options = members_.front().parameter.options().dtype(kept).requires_grad(false);
  casts_ = dtypes_.computed != kept;
  int const rank = axes_.shard_rank();
  shard_ = empty(is_cut() ? layout_.chunk() : layout_.padded(), options, MemoryTag::parameters);
  auto const filled = std::clamp<int64_t>(layout_.total() - rank * layout_.chunk(), 0, layout_.chunk());
  if (filled < layout_.chunk()) shard_.narrow(0, filled, layout_.chunk() - filled).zero_();
  if (is_cut() && !casts_)
    registered_ = axes_.shard->register_buffer(shard_);  // what each gather sends; the other buffers come and go
  auto const flat = gathers() ? without_memory(layout_.padded(), options.dtype(dtypes_.computed)) : shard_;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& m = members_[i];
    m.range = layout_.range(i, rank);
    m.whole = slice(flat, i).as_strided(m.shape, m.strides);
    m.part = part_of(shard_, i);
    if (!gathers()) continue;
    if (is_cut()) model::ShardedParameters::add(m.parameter);
    auto const rested = is_cut() ? core::message("a shard, of ", m.range.size(), " of ", layout_.numel(i), " elements")
                                 : core::message("at rest, in ", kept, " and not in ", dtypes_.computed);
    auto outside = comm::make_node<comm::RefuseGradient>(core::message(
        "weft: a gradient reaches parameter ", m.name, " past ", m.unit, ": it was used while it was ", rested,
        "; use it inside the forward of that unit (instead of an L2 term over parameters(), give the optimizer a "
        "weight_decay)"));
    outside->add_input_metadata(m.part);
    m.outside = outside;
  }
  whole_.emplace(flat,
                 core::message("weft: ", what,
                               " is sharded: its parameters are whole only while it runs, or under summon_full_params"),
                 pool);
  if (gathers()) whole_->release();
  for (auto& m : members_)
    if (!init::is_deferred(m.parameter)) take(m, m.parameter);
}

WEFT_INLINE void Group::take(Member& m, at::Tensor const& values) {
  BelowAutograd const below;
  if (is_cut())
    m.part.copy_(model::elements_of(values).narrow(0, m.range.begin, m.range.size()));
  else
    m.part.copy_(values);
  m.parameter.set_data(m.whole);
  if (m.parameter.requires_grad() && !m.accumulator) hold_accumulator(m);
  if (!gathers()) return;
  m.parameter.set_data(m.part);
  if (m.accumulator) comm::set_accumulator(m.parameter, m.outside);
}

WEFT_INLINE void Group::check() {
  for (auto& m : members_)
    if (!is_in(m.parameter, m.part) && !is_in(m.parameter, m.whole))
      fail<Error>("weft: parameter ", m.name, " was replaced since setup: it is ", m.parameter.sizes(), " of ",
                  m.parameter.scalar_type(), " now, and was ", m.whole.sizes(), " of ", m.part.scalar_type(),
                  "; set_data(), module.to() and resizing lose its shard: convert the module before setup, and write "
                  "values by copy_()");
    else if (m.parameter.numel() != m.part.numel() && m.parameter.numel() != m.whole.numel())
      fail<Error>("weft: parameter ", m.name, " was resized since setup, to ", m.parameter.sizes(), ", expected ",
                  m.part.sizes(), "; a shard keeps its size");
    else if (!gathers() && !m.accumulator && m.parameter.requires_grad())
      hold_accumulator(m);  // always whole: show_unsharded() does not see that it was unfrozen
}

WEFT_INLINE void Group::start_gather(bool masters) {
  if (!gathers()) return;
  BelowAutograd const below;
  masters_shown_ = masters && casts_;
  if (masters_shown_) {
    if (!is_cut()) return;
    masters_ = empty(layout_.padded(), shard_.options(), MemoryTag::gathered, pool_);
    gather_ = axes_.shard->all_gather_into_async(masters_, shard_, what_);
    return;
  }
  whole_->allocate();
  auto sent = shard_;
  if (casts_) {
    sent = own_chunk(whole_->tensor());
    sent.copy_(shard_);
  }
  if (is_cut()) gather_ = axes_.shard->all_gather_into_async(whole_->tensor(), sent, what_);
}

WEFT_INLINE void Group::gather_on_first() {
  bool const is_first = axes_.shard_rank() == 0;
  if (!is_cut()) return is_first ? start_gather(/*masters=*/true) : void();
  BelowAutograd const below;
  std::vector<at::Tensor> chunks;
  if (is_first) {
    masters_shown_ = casts_;
    if (casts_)
      masters_ = empty(layout_.padded(), shard_.options(), MemoryTag::gathered, pool_);
    else
      whole_->allocate();
    auto const& target = casts_ ? masters_ : whole_->tensor();
    for (int rank = 0; rank < axes_.num_shards(); ++rank)
      chunks.push_back(target.narrow(0, rank * layout_.chunk(), layout_.chunk()));
  }
  axes_.shard->gather_into(chunks, shard_);
  gathered_ = stamp();
}

WEFT_INLINE void Group::release_unsharded() {
  if (!gathers()) return;
  if (!masters_shown_) return whole_->release();
  masters_shown_ = false;
  recycle(std::exchange(masters_, at::Tensor()), MemoryTag::gathered, *pool_);
}

WEFT_INLINE void Group::show_unsharded() {
  if (!gathers()) return;
  BelowAutograd const below;
  if (masters_shown_) return is_cut() ? show_masters(masters_) : void();  // those that are not cut are masters at rest
  for (auto& m : members_) {
    m.parameter.set_data(m.whole);
    if (m.accumulator)
      comm::set_accumulator(m.parameter, m.accumulator);
    else if (m.parameter.requires_grad())
      hold_accumulator(m);  // frozen at setup, unfrozen since
  }
}

WEFT_INLINE void Group::show_shards() {
  if (!gathers()) return;
  BelowAutograd const below;
  for (auto& m : members_) {
    m.parameter.set_data(m.part);
    if (m.accumulator) comm::set_accumulator(m.parameter, m.outside);
  }
}

WEFT_INLINE void Group::check_uses(std::unordered_set<torch::autograd::Node*> const& nodes) const {
  for (auto const& m : members_)
    if (m.outside && m.outside.use_count() > 1 && nodes.contains(m.outside.get()))
      fail<Error>(static_cast<comm::RefuseGradient const&>(*m.outside).message);
}

WEFT_INLINE void Group::open_gradients() {
  for (auto& m : members_) {
    auto const grad = std::exchange(m.parameter.mutable_grad(), at::Tensor());
    if (m.holds) m.holds = !was_zeroed(m, grad);
    if (!m.shows_sum)
      m.before = grad;
    else if (!m.holds && grad.defined())  // zeroed in place: zeros, not nothing
      m.before = grad.clone();            // and no view of the next sum
    m.shows_sum = false;
    m.shown.reset();
  }
  if (!holds_gradients()) drop_gradients();
}

WEFT_INLINE void Group::take(Member& m, bool keeps) {
  BelowAutograd const below;
  auto grad = std::exchange(m.parameter.mutable_grad(), at::Tensor());
  if (grad.layout() != at::kStrided)
    fail<Error>("weft: parameter ", m.name, " has a gradient of layout ", grad.layout(),
                ", which cannot be sharded: build the embedding without sparse(true)");
  bool const owns = grad.storage().nbytes() == grad.nbytes();  // else it would keep what it is a part of
  if (keeps && owns && is_cut() && !gradients_.defined()) {
    core::retag(grad.storage().data(), MemoryTag::reduce);
    m.arrived = std::move(grad);
  } else {
    provide_gradients();
    if (m.holds)
      m.gradient.add_(grad);
    else
      m.gradient.copy_(grad);
  }
  m.holds = true;
}

WEFT_INLINE void Group::start_reduce() {
  BelowAutograd const below;
  provide_gradients();
  for (auto& m : members_)
    if (!m.holds) m.gradient.zero_();
  if (layout_.padding() > 0) gradients_.narrow(0, layout_.total(), layout_.padding()).zero_();
  if (is_cut()) {
    reduced_ = empty(layout_.chunk(), gradients_.options(),
                     reduces_in_place() ? MemoryTag::gradients : MemoryTag::reduce);
    Tagged const tag(MemoryTag::reduce);
    reduce_ = axes_.shard->reduce_scatter_into_async(reduced_, gradients_, ReduceOp::average, what_);
  } else {
    reduced_ = gradients_;
    if (axes_.replicate && layout_.total() > 0)
      reduce_ = axes_.replicate->all_reduce_async(reduced_, ReduceOp::average, what_);
  }
}

WEFT_INLINE void Group::reduce_over_replicas() {
  if (!is_cut() || !axes_.replicate || !reduced_.defined() || !gradients_.defined())
    return;  // a frozen group beside trained ones, or done already
  BelowAutograd const below;
  reduce_.wait();
  drop_gradients();
  reduce_ = axes_.replicate->all_reduce_async(reduced_, ReduceOp::average, what_);
}

WEFT_INLINE void Group::finish_reduce() {
  BelowAutograd const below;
  reduce_.wait();
  drop_gradients();
  if (!reduces_in_place() && reduced_.defined()) {
    auto const handed_out = empty(reduced_.numel(), shard_.options(), MemoryTag::gradients).copy_(reduced_);
    recycle_storage(std::exchange(reduced_, handed_out), MemoryTag::reduce, *pool_);
  }
  // Not views, as far as autograd knows: torch::optim's zero_grad() detaches gradients in place.
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& m = members_[i];
    if (!m.holds) continue;
    m.holds = false;
    auto part = part_of(reduced_, i);
    if (m.before.defined())
      m.before.add_(part);
    else
      m.before = std::move(part);
  }
  reduced_.reset();
}

WEFT_INLINE void Group::close_gradients() {
  BelowAutograd const below;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& m = members_[i];
    auto& grad = m.parameter.mutable_grad();
    grad = std::exchange(m.before, at::Tensor());
    if (!m.holds) continue;
    m.shows_sum = !grad.defined();
    if (m.shows_sum) grad = part_of(own_chunk(gradients_), i).to(shard_.scalar_type());
    m.version = grad._version();
    m.shown = grad;
  }
}

WEFT_INLINE bool Group::scale_gradient(at::Tensor const& parameter, at::Tensor const& factor) {
  auto const m = std::find_if(members_.begin(), members_.end(),
                              [&](Member const& member) { return member.parameter.is_same(parameter); });
  if (m == members_.end()) return false;
  BelowAutograd const below;
  auto const grad = m->parameter.grad();
  if (m->gradient.defined()) m->gradient.mul_(factor.to(m->gradient.device()));
  if (grad.defined() && !(m->gradient.defined() && grad.is_alias_of(gradients_))) grad.mul_(factor.to(grad.device()));
  return true;
}

WEFT_INLINE void Group::abandon() {
  gather_ = {};
  reduce_ = {};
  reduced_.reset();
  drop_gradients();
  for (auto& m : members_) {
    auto& grad = m.parameter.mutable_grad();
    if (m.before.defined() ||
        (grad.defined() && (grad.sizes() != m.part.sizes() || grad.scalar_type() != m.part.scalar_type())))
      grad = m.before;
    m.before.reset();
    m.holds = m.shows_sum = false;
  }
}

WEFT_INLINE void Group::hold_accumulator(Member& m) {
  hooks_.emplace_back(m.parameter, [this, &m] { listener_->gradient_arrived(*this, m); });
  m.accumulator = hooks_.back().accumulator();
}

WEFT_INLINE bool Group::was_zeroed(Member const& m, at::Tensor const& grad) const {
  if (!grad.defined()) return true;
  if (grad.is_same(m.shown) && grad._version() == m.version) return false;
  auto const nonzero = grad.count_nonzero().reshape({1});
  if (is_cut()) axes_.shard->all_reduce(nonzero, ReduceOp::max, what_);
  if (nonzero.item<int64_t>() == 0) return true;
  if (m.shows_sum)
    fail<Error>(
        "weft: the gradient of parameter ", m.name,
        " was changed in place before it was reduced; synchronize a backward pass first, or change it in a hook");
  return false;
}

WEFT_INLINE bool Group::is_in(at::Tensor const& tensor, at::Tensor const& memory) {
  return tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == memory.storage().unsafeGetStorageImpl() &&
         tensor.scalar_type() == memory.scalar_type();
}

WEFT_INLINE void Group::show_masters(at::Tensor const& flat) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& m = members_[i];
    m.parameter.set_data(slice(flat, i).as_strided(m.whole.sizes(), m.whole.strides()));
    if (m.accumulator) comm::set_accumulator(m.parameter, m.outside);
  }
}

WEFT_INLINE at::Tensor Group::part_of(at::Tensor const& chunk, std::size_t i) const {
  if (!is_cut()) return slice(chunk, i).as_strided(members_[i].whole.sizes(), members_[i].whole.strides());
  return chunk.narrow(0, layout_.place(i, axes_.shard_rank()), members_[i].range.size());
}

WEFT_INLINE void Group::provide_gradients() {
  if (gradients_.defined()) return;
  auto const tag = is_cut() || !reduces_in_place() ? MemoryTag::reduce : MemoryTag::gradients;
  gradients_ = empty(layout_.padded(), shard_.options().dtype(dtypes_.reduced), tag, pool_);
  for (std::size_t i = 0; i < members_.size(); ++i)
    members_[i].gradient = slice(gradients_, i).as_strided(members_[i].whole.sizes(), members_[i].whole.strides());
  for (auto& m : members_)
    if (m.arrived.defined()) m.gradient.copy_(std::exchange(m.arrived, at::Tensor()));
}

WEFT_INLINE void Group::drop_gradients() {
  for (auto& m : members_) {
    m.gradient.reset();
    m.arrived.reset();
  }
  recycle(std::exchange(gradients_, at::Tensor()), MemoryTag::reduce, *pool_);
}

WEFT_INLINE int64_t Group::stamp() const {
  int64_t sum = 0;
  for (auto const& m : members_) sum += m.parameter.is_inference() ? 0 : static_cast<int64_t>(m.parameter._version());
  return sum;
}

}  // namespace weft::shard
