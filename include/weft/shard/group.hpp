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

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <c10/core/StorageImpl.h>
#include <c10/util/accumulate.h>

#include <weft/comm/autograd_node.hpp>
#include <weft/comm/communicator.hpp>
#include <weft/shard/axes.hpp>
#include <weft/shard/buffer_pool.hpp>
#include <weft/shard/dtypes.hpp>
#include <weft/shard/layout.hpp>
#include <weft/unit/gradient_hook.hpp>

namespace weft::inline v0::shard {

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
  std::vector<int64_t> shape;    // unsharded, of this engine's axes
  std::vector<int64_t> strides;  // as its elements lie in the flat buffers
  std::size_t row = 0;           // of the parameter table
  Range range{};                 // of its elements, flattened, on this rank
  at::Tensor whole{};            // a view of whole_, with the parameter's shape and strides
  at::Tensor part{};             // a view of shard_: one dim; the parameter's shape if it is not cut
  at::Tensor arrived{};          // autograd's own gradient, until all of the group's are there
  at::Tensor gradient{};         // a view of gradients_ while there are some
  comm::NodePtr accumulator{};   // of the whole parameter
  comm::NodePtr outside{};       // what a use of the shard leads to: comm::RefuseGradient
  at::Tensor before{};           // the shard's gradient from before this backward pass
  bool holds = false;            // a gradient has arrived, or its slice of gradients_ has a sum in it
  bool shows_sum = false;        // the parameter's grad is this rank's part of that sum, not reduced yet
  uint32_t version = 0;          // of the grad that was handed out beside a sum
  at::Tensor shown{};            // that grad
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
        GradientListener& listener, BufferPool& pool);
  /// A parameter's values, equal on all ranks: this rank keeps its part.
  void take(Member& m, at::Tensor const& values);
  Group(Group const&) = delete;
  Group& operator=(Group const&) = delete;
  ~Group() { disconnect(); }

  std::vector<Member>& members() { return members_; }
  std::vector<Member> const& members() const { return members_; }
  Layout const& layout() const { return layout_; }
  bool is_cut() const { return axes_.shard && layout_.total() > 0; }
  /// Whether parameters compute in another dtype than they are kept in.
  bool casts() const { return casts_; }
  /// Whether the whole is a memory of its own, filled from the shard before each use.
  bool gathers() const { return is_cut() || casts_; }
  /// What the whole parameters lie in.
  c10::StorageImpl const* memory() const { return whole_->tensor().storage().unsafeGetStorageImpl(); }

  /// Parameters must be the tensors that setup left: what replaced one would be neither gathered nor reduced.
  void check();

  // ---- parameters ------------------------------------------------------------------------------------------------

  /// Memory for the whole, and the collective that fills it. A group that neither is cut nor casts is always whole.
  /// `masters`: what the optimizer steps is to be seen, not what computes.
  ///
  /// [Note: a cast goes where it is sent from] The low precision of a shard is written into this rank's own place in
  /// the whole, and gathered in place: there is no copy beside the cast, and no memory.
  void start_gather(bool masters = false);
  void finish_gather() {
    if (!gathers()) return;
    BelowAutograd const below;
    gather_.wait();
    gathered_ = stamp();
  }
  /// Memory for the whole on the first rank alone, and what the optimizer steps in it. Collective over the shards.
  void gather_on_first();
  void release_unsharded();
  /// Whether what was gathered is what the shards hold now. Version counters tell, as they do for autograd.
  bool is_fresh() const { return !gathers() || gathered_ == stamp(); }

  /// What the parameters are from here on: the whole, for a unit that runs.
  void show_unsharded();
  /// Or their part of the shard, for everybody else.
  void show_shards();
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
  void check_uses(std::unordered_set<torch::autograd::Node*> const& nodes) const;

  /// Before gradients of whole parameters arrive: those of the shards are put aside.
  void open_gradients();

  /// Takes the gradient that has just been accumulated. Memory for all of them at once would be there while most
  /// activations are, hence `keeps`: autograd's own tensors are kept, and copied by gather_gradients(). Without,
  /// everything is copied now.
  void take(Member& m, bool keeps);
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
  void start_reduce();
  void reduce_over_replicas();
  void finish_reduce();
  /// Hands the shards' gradients out. What was not reduced yet shows as this rank's part of its own sum.
  void close_gradients();

  /// For a loss whose scale has changed between passes: the sum that is not reduced yet, and what the parameter shows,
  /// which may be a part of that sum. It stays this group's own doing, and not a change in place that would be refused.
  bool scale_gradient(at::Tensor const& parameter, at::Tensor const& factor);

  /// No gradient is heard of any more: the graph may outlive the group.
  void disconnect() {
    for (auto& hook : hooks_) hook.disconnect();
  }

  /// Shows what was there before the pass that failed, with what of it was reduced; sums that were not reduced yet are
  /// lost.
  void restore_gradients() {
    for (auto& m : members_) m.parameter.mutable_grad() = std::exchange(m.before, at::Tensor());
  }
  /// Back to rest, whatever was under way.
  void abandon();

 private:
  /// Made while the parameter is whole, since it remembers the shape, and kept, since LibTorch's pointer to it is weak.
  void hold_accumulator(Member& m);

  /// zero_grad() between passes means the sum that is still to be reduced as well, whether it dropped the gradient or
  /// filled it. A part may be empty, or zero by itself: who changed gradients in place did so on all ranks, which tell
  /// each other what they see.
  bool was_zeroed(Member const& m, at::Tensor const& grad) const;

  static std::vector<int64_t> numels(std::vector<Member> const& members) {
    std::vector<int64_t> result;
    for (auto const& m : members) result.push_back(c10::multiply_integers(m.shape));
    return result;
  }

  /// By the storages' identity: where the memory is, a released one doesn't say.
  static bool is_in(at::Tensor const& tensor, at::Tensor const& memory);

  /// Whether what was reduced is what is handed out, in memory and dtype.
  bool reduces_in_place() const { return dtypes_.reduced == shard_.scalar_type(); }

  void show_masters(at::Tensor const& flat);

  at::Tensor slice(at::Tensor const& flat, std::size_t i) const {
    return flat.narrow(0, layout_.offset(i), layout_.numel(i));
  }
  /// All of it where nothing is cut.
  at::Tensor own_chunk(at::Tensor const& flat) const {
    return is_cut() ? flat.narrow(0, axes_.shard_rank() * layout_.chunk(), layout_.chunk()) : flat;
  }
  at::Tensor part_of(at::Tensor const& chunk, std::size_t i) const;

  void provide_gradients();
  void drop_gradients();

  int64_t stamp() const;

  Axes axes_;
  Dtypes dtypes_;
  bool casts_ = false;
  std::vector<Member> members_;
  Layout layout_;
  std::string what_;  // the units whose parameters these are
  GradientListener* listener_;
  BufferPool* pool_;
  std::vector<unit::GradientHook> hooks_;
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

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/shard/group.ipp>
#endif
