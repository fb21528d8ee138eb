// shard/sharding_engine.ipp -- definitions of shard/sharding_engine.hpp.
#pragma once

#include <weft/shard/sharding_engine.hpp>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::shard {

WEFT_INLINE Engine::Engine(model::ParameterTable& table, FsdpConfig const& config, Axes axes, int global_rank,
                           std::unique_ptr<comm::ConsistencyCheck> unused,
                           std::unique_ptr<comm::ConsistencyCheck> order)
    : table_(table),
      config_(config),
      axes_(std::move(axes)),
      global_rank_(global_rank),
      agreement_(global_rank, std::move(unused), std::move(order)) {}

WEFT_INLINE Bucket& Engine::add_bucket(Bucket bucket) {
  if (bucket.parent >= 0) buckets_[static_cast<std::size_t>(bucket.parent)]->is_around = true;
  buckets_.push_back(std::make_unique<Bucket>(std::move(bucket)));
  return *buckets_.back();
}

WEFT_INLINE void Engine::attach(unit::UnitBase& unit, std::size_t bucket, bool is_last) {
  auto hook = std::make_shared<UnitHook>(*this, bucket, is_last);
  unit.unit_attach(hook);
  units_.push_back(std::shared_ptr<unit::UnitBase>(dynamic_cast<torch::nn::Module&>(unit).shared_from_this(), &unit));
  hooks_.push_back(std::move(hook));
}

WEFT_INLINE void Engine::start(Bucket& bucket) {
  for (auto const& group : bucket.groups) {
    unsharded_memory_.insert(group->unsharded.memory());
    casts_ = casts_ || group->casts();
  }
  if (bucket.gathers()) bucket.state = Bucket::State::sharded;
}

WEFT_INLINE void Engine::pre_forward() {
  if (activation::is_recomputing()) return enter_again(0);
  if (closed_)
    fail<Error>("weft: rank ", global_rank_,
                ": the fabric that shards this model has been torn down, so it cannot gather its parameters any more");
  if (summoned_)
    fail<Error>("weft: rank ", global_rank_, ": the model was called under summon_full_params; end that scope first");
  if (unfinished_ || in_pass()) recover();
  release_kept();
  unfinished_ = true;
  order_.begin();
  enter(0);
}

WEFT_INLINE void Engine::post_forward(std::vector<at::Tensor*> const& outputs) {
  if (activation::is_recomputing()) return leave_again(0);
  pool_.close();
  for (std::size_t b = 1; b < buckets_.size(); ++b) rest(*buckets_[b]);
  leave(0, outputs, /*is_last=*/true);
  pool_.close();
  unit::add_backward_hook(std::make_shared<RootHook>(weak_from_this()), outputs);
  order_.end();
  unfinished_ = false;
  // What is not cut may be evaluated by one rank alone.
  if (axes_.shard || at::GradMode::is_enabled())
    agreement_.agree_on_order(order_.entered(), [this](std::size_t b) -> auto const& { return buckets_[b]->what; });
}

WEFT_INLINE void Engine::abandon_forward() noexcept {
  if (activation::is_recomputing()) return leave_again(0);
  pool_.close();
  // Nothing is waited for here: a rank that failed alone would wait for ever. pre_forward() cleans up.
  for (auto const& bucket : buckets_) {
    bucket->running = 0;
    if (bucket->state == Bucket::State::whole) bucket->show_shards();
  }
}

WEFT_INLINE void Engine::abandon_backward() noexcept {
  if (!in_pass() || std::exchange(abandoned_, true)) return;
  for (auto const& bucket : buckets_) {
    if (bucket->entered)
      for (auto const& group : bucket->groups) group->gradients.restore();
    if (bucket->entered) note_lost(*bucket);
    if (bucket->gathers() && bucket->state == Bucket::State::whole) bucket->show_shards();
  }
}

WEFT_INLINE model::BackwardSync Engine::set_backward_sync(model::BackwardSync sync) {
  if (sync == model::BackwardSync::local && axes_.shard)
    fail<ConfigurationError>("weft: rank ", global_rank_,
                             ": local_gradients: parameters are sharded, so no rank has a gradient of its own; write "
                             "FSDP<NoShard> or DDP<> for ranks that step by themselves, or no_backward_sync to add up");
  return std::exchange(sync_, sync);
}

WEFT_INLINE void Engine::note_lost(Bucket& bucket) {
  for (auto const& group : bucket.groups)
    for (auto& member : group->members())
      if (std::exchange(member.held, false)) table_.note_gradient(member.row, model::GradientState::incomplete);
}

WEFT_INLINE void Engine::note_sums(Bucket const& bucket) {
  for (auto const& group : bucket.groups)
    for (auto const& member : group->members())
      if (member.holds && sync_ == model::BackwardSync::accumulate)
        table_.note_gradient(member.row, model::GradientState::local_sum);
      else
        table_.forget_gradient(member.row);
}

WEFT_INLINE void Engine::close() {
  if (std::exchange(closed_, true)) return;
  for (std::size_t i = 0; i < units_.size(); ++i)
    if (auto const unit = units_[i].lock()) unit->unit_detach(hooks_[i]);
  for (auto const& bucket : buckets_)
    for (auto const& group : bucket->groups) group->disconnect();
  axes_ = {};
  agreement_.close();
}

WEFT_INLINE at::Tensor Engine::take(model::ParameterRow const& row, at::Tensor values) {
  for (auto const& bucket : buckets_)
    for (auto const& group : bucket->groups)
      for (auto& member : group->members())
        if (member.parameter.is_same(row.tensor)) {
          group->take(member, values);
          return row.tensor;
        }
  return values;
}

WEFT_INLINE void Engine::begin_summons(char const* call) {
  if (closed_)
    fail<Error>("weft: rank ", global_rank_, ": ", call,
                " after teardown: the other ranks' shards cannot be gathered any more");
  if (summoned_) fail<Error>("weft: rank ", global_rank_, ": ", call, " inside of another; use one scope");
  if (unfinished_ || in_pass()) recover();
  summoned_ = true;
  release_kept();
}

WEFT_INLINE void Engine::unshard_all() {
  begin_summons("summon_full_params");
  try {
    for (auto const& bucket : buckets_) bucket->unshard(summoned_);
  } catch (...) {  // there is no scope: what was gathered goes with the next call, as after a forward that threw
    summoned_ = false;
    unfinished_ = true;
    throw;
  }
}

WEFT_INLINE void Engine::visit_unsharded(Rows const& rows, model::Visit what,
                                         c10::function_ref<void(Rows const&)> visit) {
  begin_summons("visit_unsharded");
  bool const to_first = what == model::Visit::read_on_first, sees = !to_first || axes_.is_first();
  try {
    auto rest = rows;
    for (auto const& bucket : buckets_) {
      Rows here;
      for (auto const& group : bucket->groups)
        for (auto const& member : group->members())
          if (std::erase(rest, member.row) > 0) here.push_back(member.row);
      if (here.empty()) continue;
      to_first ? bucket->unshard_on_first(axes_) : bucket->unshard(summoned_);
      if (sees) visit(here);
      if (what == model::Visit::write)
        for (auto const& group : bucket->groups) group->unsharded.keep();
      bucket->reshard();
    }
    if (sees && !rest.empty()) visit(rest);  // nobody's here
  } catch (...) {
    summoned_ = false;
    unfinished_ = true;
    throw;
  }
  summoned_ = false;
}

WEFT_INLINE void Engine::reshard_all(bool keep_changes) {
  summoned_ = false;
  for (auto const& bucket : buckets_) {
    if (keep_changes)
      for (auto const& group : bucket->groups) group->unsharded.keep();
    bucket->reshard();
  }
}

WEFT_INLINE void Engine::gradient_arrived(Group& group, Member& member) {
  if (closed_ || !takes_gradients()) return;
  auto& bucket = bucket_of(group);
  if (!in_this_pass() || !bucket.entered)
    fail<Error>("weft: rank ", global_rank_, ": a gradient of parameter ", member.name, " arrived, but not by way of ",
                member.unit,
                "'s outputs: call the wrapped model, as model(...) or model.call<&M::method>(...), and take the loss "
                "from what it returns");
  if (bucket.reduced)
    fail<Error>("weft: rank ", global_rank_, ": a gradient of parameter ", member.name, " arrived after those of ",
                bucket.what, " had been reduced: the parameter is also used outside of ", member.unit,
                "; use it inside alone");
  bucket.arrived += member.parameter.requires_grad();  // else it was frozen since forward, and is not expected
  bool const comes_last = bucket.is_around && are_inner_passed(bucket);
  if (comes_last) {
    for (std::size_t b = buckets_.size(); b-- > 0;)
      if (auto& inner = *buckets_[b];
          inner.entered && inner.arrived == inner.expected && &inner != &bucket && is_around(bucket, b))
        complete(inner);
    if (reduces()) reducing_.make_room(config_.rate_limit, axes_);
  }
  auto const& grad = member.parameter.grad();
  if (!grad.defined()) return;  // a function may return none
  // Or a saved parameter itself, whose memory goes before what is kept is copied.
  bool const is_parameter = grad.has_storage() && unsharded_memory_.contains(grad.storage().unsafeGetStorageImpl());
  group.gradients.take(member, /*keeps=*/!comes_last && !is_parameter);
}

WEFT_INLINE Bucket& Engine::bucket_of(Group const& group) {
  for (auto const& bucket : buckets_)
    for (auto const& own : bucket->groups)
      if (own.get() == &group) return *bucket;
  fail<Error>("weft: a group without a bucket");
}

WEFT_INLINE void Engine::enter(std::size_t b) {
  auto& bucket = *buckets_[b];
  if (bucket.running++ > 0) return;
  pool_.open();
  if (b != 0)
    for (std::size_t other = 1; other < buckets_.size(); ++other)
      if (other != b && buckets_[other]->state == Bucket::State::whole) rest(*buckets_[other]);
  for (auto const& group : bucket.groups) group->check();
  if (auto const at = order_.enter(b); at && bucket.gathers() && !std::exchange(said_order_, true))
    TORCH_WARN("weft: rank ", global_rank_, ": ", bucket.what, " runs where ",
               *at < order_.recorded().size() ? buckets_[order_.recorded()[*at]]->what : "the end of forward",
               " was recorded: nothing was gathered ahead for it; that costs time, and nothing else as long as all "
               "ranks run in this order");
  bucket.claim(summoned_);
  order_.ahead_in_forward(config_.prefetch, [this](std::size_t next) { prefetch(*buckets_[next]); });
  pool_.close();
  bucket.unshard(summoned_);
}

WEFT_INLINE void Engine::leave(std::size_t b, unit::Tensors const& outputs, bool is_last) {
  auto& bucket = *buckets_[b];
  if (at::GradMode::is_enabled() && std::any_of(outputs.begin(), outputs.end(), [](auto const* output) {
        return output->defined() && output->requires_grad();
      }))
    ++bucket.calls;
  if (--bucket.running > 0) return;
  order_.leave(b);
  pool_.open();
  if (is_last) rest(bucket);
}

WEFT_INLINE void Engine::rest(Bucket& bucket) {
  if (!bucket.gathers() || bucket.running > 0) return;
  bool const keeps = bucket.state != Bucket::State::gathering && bucket.calls > 0 &&
                     (bucket.parent < 0 || !config_.sharding.reshard_after_forward);
  if (!keeps)
    bucket.reshard();
  else if (bucket.state == Bucket::State::whole)
    bucket.show_shards();
}

WEFT_INLINE void Engine::enter_again(std::size_t b) {
  if (closed_) fail<Error>("weft: rank ", global_rank_, ": backward after the fabric was torn down");
  auto& bucket = *buckets_[b];
  if (bucket.running++ > 0) return;
  bucket.found = bucket.state;
  bucket.unshard(summoned_);
}

WEFT_INLINE void Engine::leave_again(std::size_t b) {
  using enum Bucket::State;
  auto& bucket = *buckets_[b];
  if (--bucket.running > 0 || bucket.found == whole) return;
  bucket.found == sharded ? rest(bucket) : bucket.show_shards();
}

WEFT_INLINE std::size_t Engine::num_unsharded() const {
  std::size_t count = 0;
  for (std::size_t b = 1; b < buckets_.size(); ++b)
    count += buckets_[b]->gathers() &&
             (buckets_[b]->state == Bucket::State::gathering || buckets_[b]->state == Bucket::State::whole);
  return count;
}

WEFT_INLINE void Engine::pre_backward(std::size_t b) {
  if (closed_) fail<Error>("weft: rank ", global_rank_, ": backward after the fabric was torn down");
  at::NoGradGuard const no_grad;
  if (!in_this_pass()) begin_pass();
  pool_.open();
  for (std::size_t other = buckets_.size(); other-- > 0;)  // inner ones first
    if (auto& done = *buckets_[other]; done.entered && done.crossings <= done.passed && !is_around(done, b))
      retire(done);
  auto& bucket = *buckets_[b];
  if (!bucket.entered) open(bucket);
  ++bucket.passed;
  if (!unit::keeps_graph()) bucket.calls = std::max(0, bucket.calls - 1);
  bucket.claim(summoned_);
  order_.ahead_in_backward(b, config_.prefetch, [this](std::size_t next) {
    if (auto& waiting = *buckets_[next]; waiting.crossings > waiting.passed) prefetch(waiting);
  });
  pool_.close();
  bucket.unshard(summoned_);
}

WEFT_INLINE void Engine::forget_backward(std::size_t b) noexcept {
  auto& bucket = *buckets_[b];
  bucket.calls = std::max(0, bucket.calls - 1);
  if (bucket.calls == 0 && bucket.state == Bucket::State::kept && bucket.gathers() && !closed_) bucket.release();
}

WEFT_INLINE void Engine::begin_pass() {
  if (in_pass()) recover();
  table_.refuse_incomplete_gradients(global_rank_);
  for (auto const& bucket : buckets_) bucket->passed = bucket->crossings = 0;
  if (auto const* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph()) {
    for (auto const& bucket : buckets_)
      for (auto const& group : bucket->groups) group->gradients.check_uses(*nodes);
    unit::detail::announce_backward(*nodes, this);
  }
  task_ = torch::autograd::get_current_graph_task_id();
  torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] { self->end_pass(); });
}

WEFT_INLINE void Engine::open(Bucket& bucket) {
  bucket.entered = true;
  bucket.reduced = false;
  bucket.expected = bucket.arrived = 0;
  if (!takes_gradients()) return;
  for (auto const& group : bucket.groups) {
    group->gradients.open();
    for (auto const& member : group->members()) bucket.expected += member.parameter.requires_grad();
  }
}

WEFT_INLINE bool Engine::is_around(Bucket const& bucket, std::size_t b) const {
  for (int at = static_cast<int>(b); at >= 0; at = buckets_[static_cast<std::size_t>(at)]->parent)
    if (buckets_[static_cast<std::size_t>(at)].get() == &bucket) return true;
  return false;
}

WEFT_INLINE bool Engine::are_inner_passed(Bucket const& bucket) const {
  bool some = false;
  for (std::size_t b = 1; b < buckets_.size(); ++b) {
    auto const& inner = *buckets_[b];
    if (&inner == &bucket || !is_around(bucket, b)) continue;
    if (inner.crossings > inner.passed) return false;
    some = some || inner.entered;
  }
  return some;
}

WEFT_INLINE void Engine::complete(Bucket& bucket) {
  if (bucket.reduced || (bucket.expected == 0 && !bucket.holds_gradients())) return;
  if (reduces()) return start_reduce(bucket);
  for (auto const& group : bucket.groups) group->gradients.in_one_piece();
}

WEFT_INLINE void Engine::start_reduce(Bucket& bucket) {
  reducing_.make_room(config_.rate_limit, axes_);
  for (auto const& group : bucket.groups)
    for (auto const& member : group->members())
      if (member.parameter.requires_grad() && !member.holds) agreement_.note_unused(member.name);
  reducing_.start(bucket);
}

WEFT_INLINE void Engine::end_pass() {
  at::NoGradGuard const no_grad;
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {  // inner ones first
    // Sums from passes without synchronization, of units that this one did not reach.
    if (!(*bucket)->entered && reduces() && (*bucket)->holds_gradients()) open(**bucket);
    if ((*bucket)->entered) retire(**bucket);
  }
  reducing_.finish();
  for (auto const& bucket : buckets_) {
    if (bucket->entered && takes_gradients())
      for (auto const& group : bucket->groups) group->gradients.close();
    if (bucket->entered && takes_gradients()) note_sums(*bucket);
    bucket->entered = false;
  }
  for (auto const& bucket : buckets_) rest(*bucket);
  task_ = -1;
  if (reduces()) agreement_.agree_on_unused();
}

WEFT_INLINE void Engine::recover() {
  at::NoGradGuard const no_grad;
  pool_.close();
  for (auto const& bucket : buckets_) {
    bucket->running = 0;
    bucket->reshard();
    if (bucket->entered) {
      std::vector<std::size_t> lost;  // what restore() has not told of: LibTorch's own backward was called
      for (auto const& group : bucket->groups)
        for (auto const& member : group->members())
          if (member.held) lost.push_back(member.row);
      for (auto const& group : bucket->groups) group->abandon();
      for (auto const row : lost) table_.note_gradient(row, model::GradientState::incomplete);
    }
    bucket->entered = false;
  }
  reducing_.forget();
  task_ = -1;
  unfinished_ = abandoned_ = false;
}

}  // namespace weft::shard
