// shard/sharding_engine.hpp -- one sharded model through a training step.
// In: a model's units, cut into buckets, and an FsdpConfig. Out: parameters whole where they compute, gradients reduced
// where they belong.
//
//   forward    gather 0 | run root | gather 1 | run unit 1 | free 1, gather 2 | ...        the next one is gathered
//   meanwhile backward   gather n | backward of unit n | free n, reduce n, gather n-1 | ... its end    wait for the
//   reductions, hand out the shards' gradients
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <weft/activation/recompute_scope.hpp>
#include <weft/comm/consistency_check.hpp>
#include <weft/core/error.hpp>
#include <weft/model/engine.hpp>
#include <weft/shard/group.hpp>
#include <weft/strategy/fsdp.hpp>
#include <weft/unit/backward_hook.hpp>
#include <weft/unit/hooks.hpp>

namespace weft::inline v0::shard {

/// Units that travel together, and the groups of their parameters.
struct Bucket {
  enum class State {
    sharded,    // parameters are shards, nothing else has memory
    gathering,  // the whole is on its way
    kept,       // the whole has memory, parameters are shards: between forward and backward
    whole,      // parameters are whole
  };

  std::string what;        // "layers.0 (TransformerBlock), layers.1 (TransformerBlock)"
  int parent = -1;         // the bucket of the unit around; -1: this is the root
  bool is_around = false;  // of others
  std::vector<std::unique_ptr<Group>> groups{};

  State state = State::whole;
  State found = State::whole;  // by a forward that runs again
  int running = 0;             // forwards of its units under way
  int calls = 0;               // forwards whose backward may still come: their graphs are there, and were not used up
  int crossings = 0;           // forwards whose outputs are in the graph of this backward pass
  int passed = 0;              // of these, how many it has entered
  bool entered = false;        // in this backward pass
  bool reduced = false;        // in this backward pass
  std::size_t expected = 0, arrived = 0;  // gradients in this backward pass

  bool gathers() const {
    return std::any_of(groups.begin(), groups.end(), [](auto const& group) { return group->gathers(); });
  }
};

class Engine final : public model::Engine, public GradientListener, public std::enable_shared_from_this<Engine> {
 public:
  Engine(FsdpConfig const& config, Axes axes, int global_rank, std::unique_ptr<comm::ConsistencyCheck> unused,
         std::unique_ptr<comm::ConsistencyCheck> order)
      : config_(config),
        axes_(std::move(axes)),
        global_rank_(global_rank),
        consistency_(std::move(unused)),
        order_consistency_(std::move(order)) {}
  ~Engine() override {
    Engine::close();
    for (auto const& hook : hooks_) hook->engine = nullptr;
  }

  /// The first is the root. Groups are added by the maker, with this engine as their listener.
  Bucket& add_bucket(Bucket bucket) {
    if (bucket.parent >= 0) buckets_[static_cast<std::size_t>(bucket.parent)]->is_around = true;
    buckets_.push_back(std::make_unique<Bucket>(std::move(bucket)));
    return *buckets_.back();
  }
  /// The hook for a unit of the bucket; `is_last` of its units, in the order of registration.
  void attach(unit::UnitBase& unit, std::size_t bucket, bool is_last) {
    auto hook = std::make_shared<UnitHook>(*this, bucket, is_last);
    unit.unit_attach(hook);
    units_.push_back(std::shared_ptr<unit::UnitBase>(dynamic_cast<torch::nn::Module&>(unit).shared_from_this(), &unit));
    hooks_.push_back(std::move(hook));
  }
  /// Who says the name of a parameter that the model has got since setup, or nothing.
  void ask_for_unknown(std::function<std::string()> unknown_parameter) {
    unknown_parameter_ = std::move(unknown_parameter);
  }
  /// A bucket that has all of its groups.
  void start(Bucket& bucket) {
    for (auto const& group : bucket.groups) {
      unsharded_memory_.insert(group->memory());
      casts_ = casts_ || group->casts();
    }
    if (bucket.gathers()) bucket.state = Bucket::State::sharded;
  }

  std::vector<std::unique_ptr<Bucket>> const& buckets() const { return buckets_; }
  /// See [Note: pieces pass on]: kept between a unit's end and the next one's start, in forward, and while backward
  /// goes from one to the next.
  BufferPool& pool() { return pool_; }

  // ---- what the wrapped model and the guard call -------------------------------------------------------------------

  void pre_forward() override {
    if (activation::is_recomputing()) return enter_again(0);
    if (closed_)
      fail<Error>(
          "weft: rank ", global_rank_,
          ": the fabric that shards this model has been torn down, so it cannot gather its parameters any more");
    if (summoned_)
      fail<Error>("weft: rank ", global_rank_, ": the model was called under summon_full_params; end that scope first");
    if (unfinished_ || in_pass()) recover();
    release_kept();
    unfinished_ = true;
    pass_.clear();
    left_.clear();
    follows_ = !order_.empty();
    enter(0);
  }
  void post_forward(std::vector<at::Tensor*> const& outputs) override {
    if (activation::is_recomputing()) return leave_again(0);
    pool_.close();
    for (std::size_t b = 1; b < buckets_.size(); ++b) rest(*buckets_[b]);
    leave(0, outputs, /*is_last=*/true);
    pool_.close();
    unit::add_backward_hook(std::make_shared<RootHook>(weak_from_this()), outputs);
    if (!follows_) {
      order_ = pass_;
      left_order_ = left_;
    }
    unfinished_ = false;
    if (axes_.shard || at::GradMode::is_enabled())
      agree_on_order();  // what is not cut may be evaluated by one rank alone
  }
  void abandon_forward() noexcept override {
    if (activation::is_recomputing()) return leave_again(0);
    pool_.close();
    // Nothing is waited for here: a rank that failed alone would wait for ever. pre_forward() cleans up.
    for (auto const& bucket : buckets_) {
      bucket->running = 0;
      if (bucket->state == Bucket::State::whole) show_shards(*bucket);
    }
  }

  void abandon_backward() noexcept override {
    if (!in_pass() || std::exchange(abandoned_, true)) return;
    for (auto const& bucket : buckets_) {
      if (bucket->entered)
        for (auto const& group : bucket->groups) group->restore_gradients();
      if (bucket->gathers() && bucket->state == Bucket::State::whole) show_shards(*bucket);
    }
  }

  bool set_backward_sync(bool on) override { return std::exchange(sync_, on); }
  bool guards_units() const override { return true; }

  void close() override {
    if (std::exchange(closed_, true)) return;
    for (std::size_t i = 0; i < units_.size(); ++i)
      if (auto const unit = units_[i].lock()) unit->unit_detach(hooks_[i]);
    for (auto const& bucket : buckets_)
      for (auto const& group : bucket->groups) group->disconnect();
    axes_ = {};
    consistency_.reset();
    order_consistency_.reset();
  }

  void unshard_all() override {
    if (closed_)
      fail<Error>("weft: rank ", global_rank_,
                  ": summon_full_params after teardown: the other ranks' shards cannot be gathered any more");
    if (summoned_) fail<Error>("weft: rank ", global_rank_, ": summon_full_params inside of another; use one scope");
    if (unfinished_ || in_pass()) recover();
    summoned_ = true;
    release_kept();
    try {
      for (auto const& bucket : buckets_) unshard(*bucket);
    } catch (...) {  // there is no scope: what was gathered goes with the next call, as after a forward that threw
      summoned_ = false;
      unfinished_ = true;
      throw;
    }
  }
  void reshard_all(bool keep_changes) override {
    summoned_ = false;
    for (auto const& bucket : buckets_) {
      if (keep_changes)
        for (auto const& group : bucket->groups) group->keep_unsharded();
      reshard(*bucket);
    }
  }
  comm::Communicator* ranks_along(std::string const& axis) override {
    return axes_.shard && axes_.shard->axis() == axis ? axes_.shard.get() : nullptr;
  }
  bool scale_gradient(at::Tensor const& parameter, at::Tensor const& factor) override {
    for (auto const& bucket : buckets_)
      for (auto const& group : bucket->groups)
        if (group->scale_gradient(parameter, factor)) return true;
    return false;
  }
  void show_shapes(bool whole) override {
    for (auto const& bucket : buckets_)
      for (auto const& group : bucket->groups) whole ? group->show_shapes() : group->show_shards();
  }

  // ---- backward: called on autograd's thread -----------------------------------------------------------------------

  void gradient_arrived(Group& group, Member& member) override {
    if (closed_ || !takes_gradients()) return;
    auto& bucket = bucket_of(group);
    if (!in_this_pass() || !bucket.entered)
      fail<Error>("weft: rank ", global_rank_, ": a gradient of parameter ", member.name,
                  " arrived, but not by way of ", member.unit,
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
      if (reduces()) make_room();
    }
    auto const& grad = member.parameter.grad();
    if (!grad.defined()) return;  // a function may return none
    // Or a saved parameter itself, whose memory goes before what is kept is copied.
    bool const is_parameter = grad.has_storage() && unsharded_memory_.contains(grad.storage().unsafeGetStorageImpl());
    group.take(member, /*keeps=*/!comes_last && !is_parameter);
  }

 private:
  struct UnitHook final : unit::Hooks {
    UnitHook(Engine& it, std::size_t b, bool last) : engine(&it), bucket(b), is_last(last) {}
    Needs needs() const override { return {.inputs = false, .pre_backward = true, .post_backward = false}; }
    void pre_forward(unit::Site const&, unit::Tensors const&) override {
      activation::is_recomputing() ? engine->enter_again(bucket) : engine->enter(bucket);
    }
    void post_forward(unit::Site const&, unit::Tensors const& outputs) override {
      activation::is_recomputing() ? engine->leave_again(bucket) : engine->leave(bucket, outputs, is_last);
    }
    void abandon_forward(unit::Site const&) noexcept override {
      if (activation::is_recomputing()) return engine->leave_again(bucket);
      engine->buckets_[bucket]->running = 0;
    }
    void expect_backward(unit::Site const&, void const* who) noexcept override {
      if (engine && engine == who) ++engine->buckets_[bucket]->crossings;
    }
    void forget_backward(unit::Site const&) noexcept override {
      if (engine) engine->forget_backward(bucket);
    }
    void pre_backward(unit::Site const& site) override {
      if (!engine)
        fail<Error>("weft: backward through unit ", site.describe(),
                    " after its model was destroyed: its parameters cannot be gathered any more");
      engine->pre_backward(bucket);
    }
    Engine* engine;  // null once it is gone: a graph may outlive it
    std::size_t bucket;
    bool is_last;
  };

  /// The graph may outlive the engine, and with it the model.
  struct RootHook final : unit::BackwardHook {
    explicit RootHook(std::weak_ptr<Engine> it) : engine(std::move(it)) {}
    void pre_backward() override {
      auto const alive = engine.lock();
      if (!alive)
        fail<Error>("weft: backward through a model that was destroyed: its parameters cannot be gathered any more");
      alive->pre_backward(0);
    }
    void expect_backward(void const* who) noexcept override {
      if (auto const alive = engine.lock(); alive && alive.get() == who) ++alive->buckets_[0]->crossings;
    }
    void forget_backward() noexcept override {
      if (auto const alive = engine.lock()) alive->forget_backward(0);
    }
    std::weak_ptr<Engine> engine;
  };

  Bucket& bucket_of(Group const& group) {
    for (auto const& bucket : buckets_)
      for (auto const& own : bucket->groups)
        if (own.get() == &group) return *bucket;
    fail<Error>("weft: a group without a bucket");
  }

  // ---- one bucket --------------------------------------------------------------------------------------------------

  void start_gather(Bucket& bucket) {
    for (auto const& group : bucket.groups) group->start_gather(summoned_);
    bucket.state = Bucket::State::gathering;
  }
  /// Sees to it that the whole is there or on its way.
  void claim(Bucket& bucket) {
    using enum Bucket::State;
    if (bucket.state == kept && bucket.gathers() && !is_fresh(bucket)) release(bucket);
    if (bucket.state == sharded) start_gather(bucket);
  }
  void unshard(Bucket& bucket) {
    using enum Bucket::State;
    if (bucket.state == whole) return;
    claim(bucket);
    if (bucket.state == gathering)
      for (auto const& group : bucket.groups) group->finish_gather();
    for (auto const& group : bucket.groups) group->show_unsharded();
    bucket.state = whole;
  }
  void show_shards(Bucket& bucket) {
    for (auto const& group : bucket.groups) group->show_shards();
    bucket.state = Bucket::State::kept;
  }
  void release(Bucket& bucket) {
    for (auto const& group : bucket.groups) group->release_unsharded();
    bucket.state = Bucket::State::sharded;
  }
  void reshard(Bucket& bucket) {
    using enum Bucket::State;
    if (bucket.state == sharded || !bucket.gathers()) return;
    if (bucket.state == gathering)
      for (auto const& group : bucket.groups) group->finish_gather();
    if (bucket.state == whole) show_shards(bucket);
    release(bucket);
  }
  /// [Note: a graph's life is a rank's own affair] One rank may keep an output that the others have let go, so what is
  /// gathered, and when a unit is done, must not depend on which graphs are alive: a forward and a summons gather anew
  /// what was kept for a backward, and a backward counts the hooks in its own graph.
  void release_kept() {
    for (auto const& bucket : buckets_)
      if (bucket->state == Bucket::State::kept && bucket->gathers()) release(*bucket);
  }
  static bool is_fresh(Bucket const& bucket) {
    return std::all_of(bucket.groups.begin(), bucket.groups.end(), [](auto const& group) { return group->is_fresh(); });
  }

  // ---- forward -----------------------------------------------------------------------------------------------------

  void enter(std::size_t b) {
    auto& bucket = *buckets_[b];
    if (bucket.running++ > 0) return;
    pool_.open();
    if (b != 0)
      for (std::size_t other = 1; other < buckets_.size(); ++other)
        if (other != b && buckets_[other]->state == Bucket::State::whole) rest(*buckets_[other]);
    for (auto const& group : bucket.groups) group->check();
    note_order(b);
    claim(bucket);
    prefetch_forward();
    pool_.close();
    unshard(bucket);
  }
  void leave(std::size_t b, unit::Tensors const& outputs, bool is_last) {
    auto& bucket = *buckets_[b];
    if (at::GradMode::is_enabled() && std::any_of(outputs.begin(), outputs.end(), [](auto const* output) {
          return output->defined() && output->requires_grad();
        }))
      ++bucket.calls;
    if (--bucket.running > 0) return;
    if (left_.empty() || left_.back() != b) left_.push_back(b);
    pool_.open();
    if (is_last) rest(bucket);
  }
  /// What a bucket does whose units don't run: wait for backward as the config says, or be a shard again. One that was
  /// gathered ahead and did not run is a shard again whatever waits for it: kept, it would have the values of now in
  /// the next forward, and on this rank alone.
  void rest(Bucket& bucket) {
    if (!bucket.gathers() || bucket.running > 0) return;
    bool const keeps = bucket.state != Bucket::State::gathering && bucket.calls > 0 &&
                       (bucket.parent < 0 || !config_.sharding.reshard_after_forward);
    if (!keeps)
      reshard(bucket);
    else if (bucket.state == Bucket::State::whole)
      show_shards(bucket);
  }

  /// [Note: a forward that runs again] Recomputation meets units in backward. That is no forward of the model: no order
  /// is recorded, nothing is gathered ahead, and each bucket is left as it was found, so that a pass goes on where it
  /// was. A unit that is recomputed as a whole is whole by then, because the pass has entered it; one inside of
  /// something larger that is recomputed is gathered once more. tests/shard/recompute.cpp
  void enter_again(std::size_t b) {
    if (closed_) fail<Error>("weft: rank ", global_rank_, ": backward after the fabric was torn down");
    auto& bucket = *buckets_[b];
    if (bucket.running++ > 0) return;
    bucket.found = bucket.state;
    unshard(bucket);
  }
  void leave_again(std::size_t b) {
    using enum Bucket::State;
    auto& bucket = *buckets_[b];
    if (--bucket.running > 0 || bucket.found == whole) return;
    bucket.found == sharded ? rest(bucket) : show_shards(bucket);
  }

  /// [Note: the recorded order] The first forward records the order in which buckets run; from then on the next ones
  /// are gathered ahead. A forward that runs in another order gathers when it must, and its order is the next one's.
  void note_order(std::size_t b) {
    if (!pass_.empty() && pass_.back() == b) return;
    // A method that runs the units again and again, such as one that generates a text, begins anew behind the root.
    if (follows_ && pass_.size() == order_.size() && order_.size() > 1) pass_.resize(1);
    pass_.push_back(b);
    if (!follows_) return;
    auto const at = pass_.size() - 1;
    if (at < order_.size() && order_[at] == b) return;
    follows_ = false;
    if (buckets_[b]->gathers() && !std::exchange(said_order_, true))
      TORCH_WARN("weft: rank ", global_rank_, ": ", buckets_[b]->what, " runs where ",
                 at < order_.size() ? buckets_[order_[at]]->what : "the end of forward",
                 " was recorded: nothing was gathered ahead for it; that costs time, and nothing else as long as all "
                 "ranks run in this order");
  }
  void prefetch_forward() {
    if (!follows_) return;
    for (std::size_t ahead = pass_.size(); ahead < order_.size() && ahead < pass_.size() + config_.prefetch; ++ahead)
      prefetch(*buckets_[order_[ahead]]);
  }
  void prefetch(Bucket& bucket) {
    if (!bucket.gathers() || bucket.state != Bucket::State::sharded || num_unsharded() >= config_.rate_limit) return;
    start_gather(bucket);
  }
  /// Buckets with memory for the whole, but for the root and those that wait for backward.
  std::size_t num_unsharded() const {
    std::size_t count = 0;
    for (std::size_t b = 1; b < buckets_.size(); ++b)
      count += buckets_[b]->gathers() &&
               (buckets_[b]->state == Bucket::State::gathering || buckets_[b]->state == Bucket::State::whole);
    return count;
  }

  // ---- backward ----------------------------------------------------------------------------------------------------

  bool in_pass() const { return task_ >= 0; }
  bool in_this_pass() const { return in_pass() && task_ == torch::autograd::get_current_graph_task_id(); }
  /// One rank's gradients stay where autograd puts them, unless they are in other dtypes than the parameters.
  bool takes_gradients() const { return !axes_.alone() || casts_; }
  bool reduces() const { return takes_gradients() && (sync_ || config_.accumulate_sharded || axes_.alone()); }

  void pre_backward(std::size_t b) {
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
    claim(bucket);
    prefetch_backward(b);
    pool_.close();
    unshard(bucket);
  }
  /// A graph went without a pass.
  void forget_backward(std::size_t b) noexcept {
    auto& bucket = *buckets_[b];
    bucket.calls = std::max(0, bucket.calls - 1);
    if (bucket.calls == 0 && bucket.state == Bucket::State::kept && bucket.gathers() && !closed_) release(bucket);
  }
  void begin_pass() {
    if (in_pass()) recover();
    for (auto const& bucket : buckets_) bucket->passed = bucket->crossings = 0;
    if (auto const* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph()) {
      for (auto const& bucket : buckets_)
        for (auto const& group : bucket->groups) group->check_uses(*nodes);
      unit::detail::announce_backward(*nodes, this);
    }
    task_ = torch::autograd::get_current_graph_task_id();
    torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this()] { self->end_pass(); });
  }
  void open(Bucket& bucket) {
    bucket.entered = true;
    bucket.reduced = false;
    bucket.expected = bucket.arrived = 0;
    if (!takes_gradients()) return;
    for (auto const& group : bucket.groups) {
      group->open_gradients();
      for (auto const& member : group->members()) bucket.expected += member.parameter.requires_grad();
    }
  }
  bool is_around(Bucket const& bucket, std::size_t b) const {
    for (int at = static_cast<int>(b); at >= 0; at = buckets_[static_cast<std::size_t>(at)]->parent)
      if (buckets_[static_cast<std::size_t>(at)].get() == &bucket) return true;
    return false;
  }
  /// Whether backward has been in units inside of this one, and will be in no further one.
  bool are_inner_passed(Bucket const& bucket) const {
    bool some = false;
    for (std::size_t b = 1; b < buckets_.size(); ++b) {
      auto const& inner = *buckets_[b];
      if (&inner == &bucket || !is_around(bucket, b)) continue;
      if (inner.crossings > inner.passed) return false;
      some = some || inner.entered;
    }
    return some;
  }
  void prefetch_backward(std::size_t b) {
    auto const here = std::find(left_order_.rbegin(), left_order_.rend(),
                                b);  // backward enters the unit that forward left last
    if (here == left_order_.rend()) return;
    std::size_t ahead = 0;
    for (auto next = here + 1; next != left_order_.rend() && ahead < config_.prefetch; ++next, ++ahead)
      if (auto& bucket = *buckets_[*next]; bucket.crossings > bucket.passed) prefetch(bucket);
  }

  /// [Note: a unit that another follows is done] Autograd runs nodes in the reverse of the order in which they were
  /// made, so when the backward hook of an earlier unit runs, the later one has computed all it will: what has not
  /// arrived by then is unused.
  void retire(Bucket& bucket) {
    if (bucket.parent >= 0) reshard(bucket);
    complete(bucket);
  }
  void complete(Bucket& bucket) {
    if (bucket.reduced || (bucket.expected == 0 && !holds_gradients(bucket))) return;
    if (reduces()) return start_reduce(bucket);
    for (auto const& group : bucket.groups) group->gather_gradients();
  }
  static bool holds_gradients(Bucket const& bucket) {
    return std::any_of(bucket.groups.begin(), bucket.groups.end(),
                       [](auto const& group) { return group->holds_gradients(); });
  }

  /// Reductions overlap with backward. Whole gradients have at most the memory of rate_limit buckets, and of two at
  /// least: those that arrive, and those that are copied into one piece, among them. Units around others come on top.
  void make_room() {
    bool const in_parts = axes_.shard && axes_.replicate;  // averaged over the replicas: not whole any more
    if (in_parts && !reducing_.empty()) reduce_over_replicas(*reducing_.back());
    auto const limit = std::max<std::size_t>(2, config_.rate_limit);
    while (reducing_.size() > (in_parts ? limit - 1 : limit - 2)) finish_reduce();
  }
  void start_reduce(Bucket& bucket) {
    make_room();
    for (auto const& group : bucket.groups) {
      if (!group->is_trained()) continue;
      note_unused(*group);
      group->start_reduce();
    }
    bucket.reduced = true;
    reducing_.push_back(&bucket);
  }
  static void reduce_over_replicas(Bucket& bucket) {
    for (auto const& group : bucket.groups) group->reduce_over_replicas();
  }
  void finish_reduce() {
    auto& bucket = *reducing_.front();
    if (reducing_.size() == 1) reduce_over_replicas(bucket);
    reducing_.pop_front();
    for (auto const& group : bucket.groups) group->finish_reduce();
  }

  /// [Note: ranks agree on what is unused] A parameter without gradient keeps an undefined one, and whether it has one
  /// is seen by each rank alone. Were ranks to differ, parts of one parameter would move and others not. A rank whose
  /// set changed since ranks last agreed asks the others through the store; those that see no change don't answer,
  /// which is the error.
  void note_unused(Group const& group) {
    for (auto const& member : group.members())
      if (member.parameter.requires_grad() && !member.holds) unused_ += (unused_.empty() ? "" : ", ") + member.name;
  }
  /// [Note: ranks agree on the order] Were ranks to run units in different orders, their collectives would pair unit
  /// with unit wrongly: an error in the backend where sizes differ, wrong values where they don't. Asked for as [Note:
  /// ranks agree on what is unused] says.
  void agree_on_order() {
    if (pass_ == agreed_order_) return;
    refuse_unknown();
    if (order_consistency_) {
      std::string mine;
      for (auto const b : pass_) mine += (mine.empty() ? "" : ", ") + buckets_[b]->what;
      if (auto const other = order_consistency_->differing(mine))
        fail<Error>("weft: rank ", global_rank_, " ran its units in the order ", mine, "; rank ", other->first,
                    " in the order ", other->second.empty() ? "(none yet)" : other->second,
                    ": what they gathered and reduced was not each other's; let all ranks run the same units in one "
                    "order (LaunchOptions::check_collectives finds the first call that differs)");
    }
    agreed_order_ = pass_;
  }
  /// A unit that runs no more, or a parameter without gradient, may be one that was replaced: the new one is in no
  /// group.
  void refuse_unknown() const {
    if (!unknown_parameter_) return;
    if (auto const name = unknown_parameter_(); !name.empty())
      fail<Error>("weft: rank ", global_rank_, ": parameter ", name,
                  " was registered after setup, so it is neither sharded nor averaged nor in an optimizer of setup's; "
                  "change the model before setup");
  }
  void agree_on_unused() {
    auto const mine = std::exchange(unused_, "");
    if (!mine.empty() && std::exchange(known_unused_, mine) != mine) refuse_unknown();
    if (!consistency_) return;
    if (auto const other = consistency_->differing(mine))
      fail<Error>("weft: rank ", global_rank_, ": no gradient arrived for ", mine.empty() ? "nothing" : mine,
                  ", but on rank ", other->first, " for ", other->second.empty() ? "nothing" : other->second,
                  ": the ranks' losses use different parameters, which sharding can't average; let every rank use them "
                  "(a term times 0 is enough)");
  }

  void end_pass() {
    at::NoGradGuard const no_grad;
    for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {  // inner ones first
      // Sums from passes without synchronization, of units that this one did not reach.
      if (!(*bucket)->entered && reduces() && holds_gradients(**bucket)) open(**bucket);
      if ((*bucket)->entered) retire(**bucket);
    }
    while (!reducing_.empty()) finish_reduce();
    for (auto const& bucket : buckets_) {
      if (bucket->entered && takes_gradients())
        for (auto const& group : bucket->groups) group->close_gradients();
      bucket->entered = false;
    }
    for (auto const& bucket : buckets_) rest(*bucket);
    task_ = -1;
    if (reduces()) agree_on_unused();
  }

  /// An exception left a pass, on all ranks alike: everything is a shard again.
  void recover() {
    at::NoGradGuard const no_grad;
    pool_.close();
    for (auto const& bucket : buckets_) {
      bucket->running = 0;
      reshard(*bucket);
      if (bucket->entered)
        for (auto const& group : bucket->groups) group->abandon();
      bucket->entered = false;
    }
    reducing_.clear();
    task_ = -1;
    unfinished_ = abandoned_ = false;
  }

  FsdpConfig config_;
  Axes axes_;
  bool casts_ = false;  // some group does
  int global_rank_;
  BufferPool pool_;  // of the groups, which go first
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::unordered_set<c10::StorageImpl const*> unsharded_memory_;  // of the groups
  std::vector<std::weak_ptr<unit::UnitBase>> units_;  // one that was replaced after setup is gone before its engine
  std::vector<std::shared_ptr<UnitHook>> hooks_;
  std::vector<std::size_t> order_, pass_;       // see [Note: the recorded order]
  std::vector<std::size_t> left_order_, left_;  // in which they were left: an outer unit after those inside of it
  std::deque<Bucket*> reducing_;
  std::unique_ptr<comm::ConsistencyCheck> consistency_, order_consistency_;
  std::vector<std::size_t> agreed_order_;  // see [Note: ranks agree on the order]
  std::string unused_, known_unused_;      // see [Note: ranks agree on what is unused]
  std::function<std::string()> unknown_parameter_;
  bool follows_ = false;
  bool said_order_ = false;
  bool unfinished_ = false;  // a forward began and hasn't ended
  bool abandoned_ = false;   // a backward pass failed, and shows what was before it
  bool summoned_ = false;
  bool sync_ = true;
  bool closed_ = false;
  int task_ = -1;
};

}  // namespace weft::shard
