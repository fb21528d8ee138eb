// shard/group.hpp -- parameters that travel together.
// In: whole parameters of one dtype, all trainable or all frozen, the ranks they are cut over, and the dtypes they
// compute in. Out: unsharded before forward, a shard after it, gradients reduced into shards.
//
//                 rank 0's chunk   rank 1's chunk
//   whole_        a a a a b b b b  b b c c c c c .     memory only while unsharded; parameters view it then; in the
//   computed dtype shard_                         b b c c c c c .     of rank 1, always; parameters view their part of
//   it at rest gradients_    a a a a b b b b  b b c c c c c .     once gradients have arrived, until they have been
//   reduced; in the reduced dtype
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function_hook.h>

#include <weft/comm/autograd_node.hpp>
#include <weft/comm/communicator.hpp>
#include <weft/core/error.hpp>
#include <weft/core/memory_tag.hpp>
#include <weft/init/deferred_storage.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/shard/buffer_pool.hpp>
#include <weft/shard/dtypes.hpp>
#include <weft/shard/layout.hpp>

namespace weft::inline v0::shard {

/// The ranks of a sharded model: cut over `shard`, repeated over `replicate`. Null stands for an axis of one.
struct Axes {
  std::shared_ptr<comm::Communicator> shard;
  std::shared_ptr<comm::Communicator> replicate;

  int num_shards() const { return shard ? shard->size() : 1; }
  int shard_rank() const { return shard ? shard->rank() : 0; }
  bool alone() const { return !shard && !replicate; }
};

/// [Note: below autograd] What a group does to memory is no operation of the model: no version counter moves, no view
/// is recorded. Parameters keep their TensorImpl, and tensors that autograd saved keep their StorageImpl, for which the
/// memory comes back before backward needs it.
struct BelowAutograd {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
};

/// A parameter as its group sees it.
struct Member {
  std::string name;
  std::string unit;  // where it may be used: "layers.0 (TransformerBlock)"
  at::Tensor parameter;
  Range range{};                // of its elements, flattened, on this rank
  at::Tensor whole{};           // a view of whole_, with the parameter's shape and strides
  at::Tensor part{};            // a view of shard_: one dim; the parameter's shape if it is not cut
  at::Tensor arrived{};         // autograd's own gradient, until all of the group's are there
  at::Tensor gradient{};        // a view of gradients_ while there are some
  comm::NodePtr accumulator{};  // of the whole parameter
  comm::NodePtr outside{};      // what a use of the shard leads to
  at::Tensor before{};          // the shard's gradient from before this backward pass
  bool holds = false;           // a gradient has arrived, or its slice of gradients_ has a sum in it
  bool shows_sum = false;       // the parameter's grad is this rank's part of that sum, not reduced yet
  uint32_t version = 0;         // of the grad that was handed out beside a sum
  at::Tensor shown{};           // that grad
};

/// Where gradients of a parameter go that was used while it was a shard.
struct OutsideUse final : torch::autograd::Node {
  explicit OutsideUse(std::string text) : message(std::move(text)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { fail<Error>(message); }
  std::string message;
};

class Group;

/// Hears of each gradient of a whole parameter, once per backward pass, when it is complete.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  virtual void gradient_arrived(Group& group, Member& member) = 0;
};

class Group {
 public:
  /// Takes the values of the parameters that have some, which are equal on all ranks; those that have no memory yet are
  /// taken later. Each goes straight to where it stays, and its own memory with it: the whole has none here.
  Group(std::vector<Member> members, Axes const& axes, at::ScalarType kept, Dtypes dtypes, std::string const& what,
        GradientListener& listener, BufferPool& pool)
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
      m.whole = slice(flat, i).as_strided(m.parameter.sizes(), model::strides_without_gaps(m.parameter));
      m.part = part_of(shard_, i);
      if (!gathers()) continue;
      if (is_cut()) model::ShardedParameters::add(m.parameter);
      auto const rested = is_cut()
                              ? core::message("a shard, of ", m.range.size(), " of ", m.parameter.numel(), " elements")
                              : core::message("at rest, in ", kept, " and not in ", dtypes_.computed);
      auto outside = comm::make_node<OutsideUse>(core::message(
          "weft: a gradient reaches parameter ", m.name, " past ", m.unit, ": it was used while it was ", rested,
          "; use it inside the forward of that unit (instead of an L2 term over parameters(), give the optimizer a "
          "weight_decay)"));
      outside->add_input_metadata(m.part);
      m.outside = outside;
    }
    whole_.emplace(
        flat,
        core::message("weft: ", what,
                      " is sharded: its parameters are whole only while it runs, or under summon_full_params"),
        pool);
    if (gathers()) whole_->release();
    for (auto& m : members_)
      if (!init::is_deferred(m.parameter)) take(m);
  }
  /// A parameter's values, equal on all ranks: this rank keeps its part.
  void take(Member& m) {
    BelowAutograd const below;
    if (is_cut())
      m.part.copy_(model::elements_of(m.parameter).narrow(0, m.range.begin, m.range.size()));
    else
      m.part.copy_(m.parameter);
    m.parameter.set_data(m.whole);
    if (m.parameter.requires_grad() && !m.accumulator) hold_accumulator(m);
    if (!gathers()) return;
    m.parameter.set_data(m.part);
    if (m.accumulator) comm::set_accumulator(m.parameter, m.outside);
  }
  Group(Group const&) = delete;
  Group& operator=(Group const&) = delete;
  ~Group() { disconnect(); }

  std::vector<Member>& members() { return members_; }
  std::vector<Member> const& members() const { return members_; }
  bool is_cut() const { return axes_.shard && layout_.total() > 0; }
  /// Whether parameters compute in another dtype than they are kept in.
  bool casts() const { return casts_; }
  /// Whether the whole is a memory of its own, filled from the shard before each use.
  bool gathers() const { return is_cut() || casts_; }
  /// What the whole parameters lie in.
  c10::StorageImpl const* memory() const { return whole_->tensor().storage().unsafeGetStorageImpl(); }

  /// Parameters must be the tensors that setup left: what replaced one would be neither gathered nor reduced.
  void check() {
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

  // ---- parameters ------------------------------------------------------------------------------------------------

  /// Memory for the whole, and the collective that fills it. A group that neither is cut nor casts is always whole.
  /// `masters`: what the optimizer steps is to be seen, not what computes.
  ///
  /// [Note: a cast goes where it is sent from] The low precision of a shard is written into this rank's own place in
  /// the whole, and gathered in place: there is no copy beside the cast, and no memory.
  void start_gather(bool masters = false) {
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
  void finish_gather() {
    if (!gathers()) return;
    BelowAutograd const below;
    gather_.wait();
    gathered_ = stamp();
  }
  void release_unsharded() {
    if (!gathers()) return;
    if (!masters_shown_) return whole_->release();
    masters_shown_ = false;
    recycle(std::exchange(masters_, at::Tensor()), MemoryTag::gathered, *pool_);
  }
  /// Whether what was gathered is what the shards hold now. Version counters tell, as they do for autograd.
  bool is_fresh() const { return !gathers() || gathered_ == stamp(); }

  /// What the parameters are from here on: the whole, for a unit that runs.
  void show_unsharded() {
    if (!gathers()) return;
    BelowAutograd const below;
    if (masters_shown_)
      return is_cut() ? show_masters(masters_) : void();  // those that are not cut are masters at rest
    for (auto& m : members_) {
      m.parameter.set_data(m.whole);
      if (m.accumulator)
        comm::set_accumulator(m.parameter, m.accumulator);
      else if (m.parameter.requires_grad())
        hold_accumulator(m);  // frozen at setup, unfrozen since
    }
  }
  /// Or their part of the shard, for everybody else.
  void show_shards() {
    if (!gathers()) return;
    BelowAutograd const below;
    for (auto& m : members_) {
      m.parameter.set_data(m.part);
      if (m.accumulator) comm::set_accumulator(m.parameter, m.outside);
    }
  }
  /// Or shapes alone, in the dtype that they are kept in.
  void show_shapes() {
    if (!is_cut()) return;
    BelowAutograd const below;
    show_masters(without_memory(layout_.padded(), shard_.options()));
  }
  /// Takes over what was written into the whole.
  void keep_unsharded() {
    if (!is_cut()) return;
    BelowAutograd const below;
    shard_.copy_(own_chunk(casts_ ? masters_ : whole_->tensor()));
  }

  // ---- gradients -------------------------------------------------------------------------------------------------

  /// Refuses a pass that will meet a parameter that was used while it was a shard. Autograd saved the parameter itself,
  /// which is whole by the time that its node runs, so the node might fail on shapes first. tests/shard/errors.cpp
  void check_uses(std::unordered_set<torch::autograd::Node*> const& nodes) const {
    for (auto const& m : members_)
      if (m.outside && m.outside.use_count() > 1 && nodes.contains(m.outside.get()))
        static_cast<OutsideUse&>(*m.outside).apply({});
  }

  /// Before gradients of whole parameters arrive: those of the shards are put aside.
  void open_gradients() {
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

  /// Takes the gradient that has just been accumulated. Memory for all of them at once would be there while most
  /// activations are, hence `keeps`: autograd's own tensors are kept, and copied by gather_gradients(). Without,
  /// everything is copied now.
  void take(Member& m, bool keeps) {
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
  /// What has arrived, in one piece.
  void gather_gradients() {
    BelowAutograd const below;
    if (holds_gradients()) provide_gradients();
  }

  bool is_trained() const {
    for (auto const& m : members_)
      if (m.parameter.requires_grad() || m.holds) return true;
    return false;
  }
  bool holds_gradients() const {
    for (auto const& m : members_)
      if (m.holds) return true;
    return false;
  }

  /// The collective that averages what is held over all ranks. reduce_over_replicas() goes on with it.
  void start_reduce() {
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
  void reduce_over_replicas() {
    if (!is_cut() || !axes_.replicate || !reduced_.defined() || !gradients_.defined())
      return;  // a frozen group beside trained ones, or done already
    BelowAutograd const below;
    reduce_.wait();
    drop_gradients();
    reduce_ = axes_.replicate->all_reduce_async(reduced_, ReduceOp::average, what_);
  }
  void finish_reduce() {
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
  /// Hands the shards' gradients out. What was not reduced yet shows as this rank's part of its own sum.
  void close_gradients() {
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

  /// For a loss whose scale has changed between passes: the sum that is not reduced yet, and what the parameter shows,
  /// which may be a part of that sum. It stays this group's own doing, and not a change in place that would be refused.
  bool scale_gradient(at::Tensor const& parameter, at::Tensor const& factor) {
    auto const m = std::find_if(members_.begin(), members_.end(),
                                [&](Member const& member) { return member.parameter.is_same(parameter); });
    if (m == members_.end()) return false;
    BelowAutograd const below;
    auto const grad = m->parameter.grad();
    if (m->gradient.defined()) m->gradient.mul_(factor.to(m->gradient.device()));
    if (grad.defined() && !(m->gradient.defined() && grad.is_alias_of(gradients_))) grad.mul_(factor.to(grad.device()));
    return true;
  }

  /// No gradient is heard of any more: the graph may outlive the group.
  void disconnect() {
    for (auto const& arrival : arrivals_) arrival->group = nullptr;
  }

  /// Shows what was there before the pass that failed, with what of it was reduced; sums that were not reduced yet are
  /// lost.
  void restore_gradients() {
    for (auto& m : members_) m.parameter.mutable_grad() = std::exchange(m.before, at::Tensor());
  }
  /// Back to rest, whatever was under way.
  void abandon() {
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

 private:
  struct GradientArrival {
    Group* group;
    Member* member;
  };
  struct ArrivalHook final : torch::autograd::FunctionPostHook {
    explicit ArrivalHook(std::shared_ptr<GradientArrival> it) : arrival(std::move(it)) {}
    torch::autograd::variable_list operator()(torch::autograd::variable_list const& outputs,
                                              torch::autograd::variable_list const&) override {
      if (arrival->group) arrival->group->listener_->gradient_arrived(*arrival->group, *arrival->member);
      return outputs;
    }
    std::shared_ptr<GradientArrival> arrival;
  };

  /// Made while the parameter is whole, since it remembers the shape, and kept, since LibTorch's pointer to it is weak.
  void hold_accumulator(Member& m) {
    m.accumulator = torch::autograd::impl::grad_accumulator(m.parameter);
    arrivals_.push_back(std::make_shared<GradientArrival>(GradientArrival{this, &m}));
    m.accumulator->add_post_hook(std::make_unique<ArrivalHook>(arrivals_.back()));
  }

  /// zero_grad() between passes means the sum that is still to be reduced as well, whether it dropped the gradient or
  /// filled it. A part may be empty, or zero by itself: who changed gradients in place did so on all ranks, which tell
  /// each other what they see.
  bool was_zeroed(Member const& m, at::Tensor const& grad) const {
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

  static std::vector<int64_t> numels(std::vector<Member> const& members) {
    std::vector<int64_t> result;
    for (auto const& m : members) result.push_back(m.parameter.numel());
    return result;
  }

  /// By the storages' identity: where the memory is, a released one doesn't say.
  static bool is_in(at::Tensor const& tensor, at::Tensor const& memory) {
    return tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == memory.storage().unsafeGetStorageImpl() &&
           tensor.scalar_type() == memory.scalar_type();
  }

  /// Whether what was reduced is what is handed out, in memory and dtype.
  bool reduces_in_place() const { return dtypes_.reduced == shard_.scalar_type(); }

  void show_masters(at::Tensor const& flat) {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      auto& m = members_[i];
      m.parameter.set_data(slice(flat, i).as_strided(m.whole.sizes(), m.whole.strides()));
      if (m.accumulator) comm::set_accumulator(m.parameter, m.outside);
    }
  }

  at::Tensor slice(at::Tensor const& flat, std::size_t i) const {
    return flat.narrow(0, layout_.offset(i), layout_.numel(i));
  }
  /// All of it where nothing is cut.
  at::Tensor own_chunk(at::Tensor const& flat) const {
    return is_cut() ? flat.narrow(0, axes_.shard_rank() * layout_.chunk(), layout_.chunk()) : flat;
  }
  at::Tensor part_of(at::Tensor const& chunk, std::size_t i) const {
    if (!is_cut()) return slice(chunk, i).as_strided(members_[i].whole.sizes(), members_[i].whole.strides());
    return chunk.narrow(0, layout_.place(i, axes_.shard_rank()), members_[i].range.size());
  }

  void provide_gradients() {
    if (gradients_.defined()) return;
    auto const tag = is_cut() || !reduces_in_place() ? MemoryTag::reduce : MemoryTag::gradients;
    gradients_ = empty(layout_.padded(), shard_.options().dtype(dtypes_.reduced), tag, pool_);
    for (std::size_t i = 0; i < members_.size(); ++i)
      members_[i].gradient = slice(gradients_, i).as_strided(members_[i].whole.sizes(), members_[i].whole.strides());
    for (auto& m : members_)
      if (m.arrived.defined()) m.gradient.copy_(std::exchange(m.arrived, at::Tensor()));
  }
  void drop_gradients() {
    for (auto& m : members_) {
      m.gradient.reset();
      m.arrived.reset();
    }
    recycle(std::exchange(gradients_, at::Tensor()), MemoryTag::reduce, *pool_);
  }

  int64_t stamp() const {
    int64_t sum = 0;
    for (auto const& m : members_) sum += m.parameter.is_inference() ? 0 : static_cast<int64_t>(m.parameter._version());
    return sum;
  }

  Axes axes_;
  Dtypes dtypes_;
  bool casts_ = false;
  std::vector<Member> members_;
  Layout layout_;
  std::string what_;  // the units whose parameters these are
  GradientListener* listener_;
  BufferPool* pool_;
  std::vector<std::shared_ptr<GradientArrival>> arrivals_;
  std::optional<ResizableStorage> whole_;
  at::Tensor shard_;
  std::shared_ptr<void> registered_;  // of shard_, so it goes before it
  at::Tensor masters_;                // the whole, in the dtype of the shard, while it is summoned
  bool masters_shown_ = false;
  at::Tensor gradients_;
  at::Tensor reduced_;
  comm::Pending gather_;
  comm::Pending reduce_;
  int64_t gathered_ = -1;
};

}  // namespace weft::shard
