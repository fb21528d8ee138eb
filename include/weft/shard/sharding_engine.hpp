// shard/sharding_engine.hpp -- one sharded model through a training step.
// In: a model's units, cut into buckets, and an FsdpConfig. Out: parameters whole where they compute, gradients reduced
// where they belong.
//
//   forward    gather 0 | run root | gather 1 | run unit 1 | free 1, gather 2 | ...        the next one is gathered
//   meanwhile backward   gather n | backward of unit n | free n, reduce n, gather n-1 | ... its end    wait for the
//   reductions, hand out the shards' gradients
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/graph_task.h>

#include <weft/activation/recompute_scope.hpp>
#include <weft/comm/consistency_check.hpp>
#include <weft/core/error.hpp>
#include <weft/model/engine.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/shard/bucket.hpp>
#include <weft/shard/forward_order.hpp>
#include <weft/shard/rank_agreement.hpp>
#include <weft/shard/reduction_queue.hpp>
#include <weft/strategy/fsdp.hpp>
#include <weft/unit/backward_hook.hpp>
#include <weft/unit/hooks.hpp>

namespace weft::inline v0::shard {

class Engine final : public model::Engine, public GradientListener, public std::enable_shared_from_this<Engine> {
 public:
  Engine(model::ParameterTable& table, FsdpConfig const& config, Axes axes, int global_rank,
         std::unique_ptr<comm::ConsistencyCheck> unused, std::unique_ptr<comm::ConsistencyCheck> order);
  ~Engine() override {
    Engine::close();
    for (auto const& hook : hooks_) hook->engine = nullptr;
  }

  /// The first is the root. Groups are added by the maker, with this engine as their listener.
  Bucket& add_bucket(Bucket bucket);
  /// The hook for a unit of the bucket; `is_last` of its units, in the order of registration.
  void attach(unit::UnitBase& unit, std::size_t bucket, bool is_last);
  /// Who says the name of a parameter that the model has got since setup, or nothing.
  void ask_for_unknown(std::function<std::string()> unknown_parameter) {
    agreement_.ask_for_unknown(std::move(unknown_parameter));
  }
  /// A bucket that has all of its groups.
  void start(Bucket& bucket);

  std::vector<std::unique_ptr<Bucket>> const& buckets() const { return buckets_; }
  /// See [Note: pieces pass on]: kept between a unit's end and the next one's start, in forward, and while backward
  /// goes from one to the next.
  BufferPool& pool() { return pool_; }

  // ---- what setup, the wrapped model and the guard call ------------------------------------------------------------

  at::Tensor take(model::ParameterRow const& row, at::Tensor values) override;
  void pre_forward() override;
  void post_forward(std::vector<at::Tensor*> const& outputs) override;
  void abandon_forward() noexcept override;

  void abandon_backward() noexcept override;

  model::BackwardSync set_backward_sync(model::BackwardSync sync) override;
  bool guards_units() const override { return true; }

  void close() override;

  void unshard_all() override;
  void reshard_all(bool keep_changes) override;
  void visit_unsharded(Rows const& rows, model::Visit what, c10::function_ref<void(Rows const&)> visit) override;
  bool scale_gradient(at::Tensor const& parameter, at::Tensor const& factor) override {
    for (auto const& bucket : buckets_)
      for (auto const& group : bucket->groups)
        if (group->gradients.scale(parameter, factor)) return true;
    return false;
  }
  void show_shapes(bool whole) override {
    for (auto const& bucket : buckets_)
      for (auto const& group : bucket->groups) whole ? group->unsharded.show_shapes() : group->unsharded.show_shards();
  }

  // ---- backward: called on autograd's thread -----------------------------------------------------------------------

  void gradient_arrived(Group& group, Member& member) override;

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

  Bucket& bucket_of(Group const& group);

  // ---- one bucket --------------------------------------------------------------------------------------------------

  /// Parameters are about to be shown to somebody who computes nothing.
  void begin_summons(char const* call);
  /// [Note: a graph's life is a rank's own affair] One rank may keep an output that the others have let go, so what is
  /// gathered, and when a unit is done, must not depend on which graphs are alive: a forward and a summons gather anew
  /// what was kept for a backward, and a backward counts the hooks in its own graph.
  void release_kept() {
    for (auto const& bucket : buckets_)
      if (bucket->state == Bucket::State::kept && bucket->gathers()) bucket->release();
  }

  // ---- forward -----------------------------------------------------------------------------------------------------

  void enter(std::size_t b);
  void leave(std::size_t b, unit::Tensors const& outputs, bool is_last);
  /// What a bucket does whose units don't run: wait for backward as the config says, or be a shard again. One that was
  /// gathered ahead and did not run is a shard again whatever waits for it: kept, it would have the values of now in
  /// the next forward, and on this rank alone.
  void rest(Bucket& bucket);

  /// [Note: a forward that runs again] Recomputation meets units in backward. That is no forward of the model: no order
  /// is recorded, nothing is gathered ahead, and each bucket is left as it was found, so that a pass goes on where it
  /// was. A unit that is recomputed as a whole is whole by then, because the pass has entered it; one inside of
  /// something larger that is recomputed is gathered once more. tests/shard/recompute.cpp
  void enter_again(std::size_t b);
  void leave_again(std::size_t b);

  /// See [Note: the recorded order].
  void prefetch(Bucket& bucket) {
    if (!bucket.gathers() || bucket.state != Bucket::State::sharded || num_unsharded() >= config_.rate_limit) return;
    bucket.start_gather(summoned_);
  }
  /// Buckets with memory for the whole, but for the root and those that wait for backward.
  std::size_t num_unsharded() const;

  // ---- backward ----------------------------------------------------------------------------------------------------

  bool in_pass() const { return task_ >= 0; }
  bool in_this_pass() const { return in_pass() && task_ == torch::autograd::get_current_graph_task_id(); }
  /// One rank's gradients stay where autograd puts them, unless they are in other dtypes than the parameters.
  bool takes_gradients() const { return !axes_.alone() || casts_; }
  bool reduces() const {
    return takes_gradients() && (sync_ == model::BackwardSync::reduce || config_.accumulate_sharded || axes_.alone());
  }

  void pre_backward(std::size_t b);
  /// A graph went without a pass.
  void forget_backward(std::size_t b) noexcept;
  void begin_pass();
  void open(Bucket& bucket);
  bool is_around(Bucket const& bucket, std::size_t b) const;
  /// Whether backward has been in units inside of this one, and will be in no further one.
  bool are_inner_passed(Bucket const& bucket) const;

  /// [Note: a unit that another follows is done] Autograd runs nodes in the reverse of the order in which they were
  /// made, so when the backward hook of an earlier unit runs, the later one has computed all it will: what has not
  /// arrived by then is unused.
  void retire(Bucket& bucket) {
    if (bucket.parent >= 0) bucket.reshard();
    complete(bucket);
  }
  void complete(Bucket& bucket);
  void start_reduce(Bucket& bucket);

  void end_pass();

  /// An exception left a pass, on all ranks alike: everything is a shard again.
  void recover();

  /// What a pass that failed has left of sums, and what is not reduced yet, is noted for whoever steps.
  void note_lost(Bucket& bucket);
  void note_sums(Bucket const& bucket);

  model::ParameterTable& table_;  // lives as long as the engine
  FsdpConfig config_;
  Axes axes_;
  bool casts_ = false;  // some group does
  int global_rank_;
  BufferPool pool_;  // of the groups, which go first
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::unordered_set<c10::StorageImpl const*> unsharded_memory_;  // of the groups
  std::vector<std::weak_ptr<unit::UnitBase>> units_;  // one that was replaced after setup is gone before its engine
  std::vector<std::shared_ptr<UnitHook>> hooks_;
  ForwardOrder order_;
  ReductionQueue reducing_;
  RankAgreement agreement_;
  bool said_order_ = false;
  bool unfinished_ = false;  // a forward began and hasn't ended
  bool abandoned_ = false;   // a backward pass failed, and shows what was before it
  bool summoned_ = false;
  model::BackwardSync sync_ = model::BackwardSync::reduce;
  bool closed_ = false;
  int task_ = -1;
};

}  // namespace weft::shard

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/shard/sharding_engine.ipp>
#endif
