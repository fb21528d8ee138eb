// shard/group.ipp -- definitions of shard/group.hpp.
#pragma once

#include <weft/shard/group.hpp>

#include <utility>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/init/deferred_storage.hpp>
#include <weft/model/parameter_table.hpp>

namespace weft::inline v0::shard {

WEFT_INLINE Group::Group(std::vector<Member> members, Axes const& axes, at::ScalarType kept, Dtypes dtypes,
                         std::string const& what, GradientListener& listener, BufferPool& pool)
    : flat_(std::move(members), axes, kept, dtypes, what, pool),
      unsharded(flat_),
      gradients(flat_),
      listener_(&listener) {
  BelowAutograd const below;
  for (std::size_t i = 0; i < flat_.members.size(); ++i) {
    auto& m = flat_.members[i];
    m.range = flat_.layout.range(i, axes.shard_rank());
    m.part = flat_.part_of(flat_.shard, i);
    if (!gathers()) continue;
    if (flat_.is_cut()) model::ShardedParameters::add(m.parameter);
    auto const rested = flat_.is_cut()
                            ? core::message("a shard, of ", m.range.size(), " of ", flat_.layout.numel(i), " elements")
                            : core::message("at rest, in ", kept, " and not in ", dtypes.computed);
    auto outside = comm::make_node<comm::RefuseGradient>(core::message(
        "weft: a gradient reaches parameter ", m.name, " past ", m.unit, ": it was used while it was ", rested,
        "; use it inside the forward of that unit (instead of an L2 term over parameters(), give the optimizer a "
        "weight_decay)"));
    outside->add_input_metadata(m.part);
    m.outside = outside;
  }
  for (auto& m : flat_.members)
    if (!init::is_deferred(m.parameter)) take(m, m.parameter);
}

WEFT_INLINE void Group::take(Member& m, at::Tensor const& values) {
  BelowAutograd const below;
  if (flat_.is_cut())
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
  for (auto& m : flat_.members)
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

WEFT_INLINE void Group::show_unsharded() {
  if (!gathers() || !unsharded.show()) return;
  for (auto& m : flat_.members)
    if (!m.accumulator && m.parameter.requires_grad()) hold_accumulator(m);  // frozen at setup, unfrozen since
}

WEFT_INLINE void Group::hold_accumulator(Member& m) {
  hooks_.emplace_back(m.parameter, [this, &m] { listener_->gradient_arrived(*this, m); });
  m.accumulator = hooks_.back().accumulator();
}

WEFT_INLINE bool Group::is_in(at::Tensor const& tensor, at::Tensor const& memory) {
  return tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == memory.storage().unsafeGetStorageImpl() &&
         tensor.scalar_type() == memory.scalar_type();
}

}  // namespace weft::shard
