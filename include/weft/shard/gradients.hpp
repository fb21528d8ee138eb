// shard/gradients.hpp -- gradients of parameters that travel together.
// In: gradients of whole parameters, as they arrive. Out: their average over all ranks, handed out in shards.
//
//   open    what the shards show is put aside
//   take    each that arrives: autograd's own tensor is kept, or it is added into one flat piece
//   reduce  over the shards, then over the replicas
//   close   what was reduced is handed out beside what was put aside; sums that were not are kept for the next pass
#pragma once

#include <unordered_set>

#include <torch/csrc/autograd/function.h>

#include <weft/comm/pending.hpp>
#include <weft/shard/flat_parameters.hpp>

namespace weft::inline v0::shard {

class Gradients {
 public:
  explicit Gradients(FlatParameters& flat) : flat_(flat) {}

  /// Refuses a pass that will meet a parameter that was used while it was a shard. Autograd saved the parameter itself,
  /// which is whole by the time that its node runs, so the node might fail on shapes first. tests/shard/errors.cpp
  void check_uses(std::unordered_set<torch::autograd::Node*> const& nodes) const;

  /// Before gradients of whole parameters arrive: those of the shards are put aside.
  void open();
  /// Takes the gradient that has just been accumulated. Memory for all of them at once would be there while most
  /// activations are, hence `keeps`: autograd's own tensors are kept, and copied by in_one_piece(). Without, everything
  /// is copied now.
  void take(Member& m, bool keeps);
  /// What has arrived, in one piece.
  void in_one_piece();

  bool is_trained() const;
  bool holds() const;

  /// The collective that averages what is held over all ranks. reduce_over_replicas() goes on with it.
  void start_reduce();
  void reduce_over_replicas();
  void finish_reduce();
  /// Hands the shards' gradients out. What was not reduced yet shows as this rank's part of its own sum.
  void close();

  /// For a loss whose scale has changed between passes: the sum that is not reduced yet, and what the parameter shows,
  /// which may be a part of that sum. It stays this group's own doing, and not a change in place that would be refused.
  bool scale(at::Tensor const& parameter, at::Tensor const& factor);

  /// Shows what was there before the pass that failed, with what of it was reduced. Sums that were not reduced yet are
  /// lost: zeros are shown, that somebody who goes on without zero_grad() can be told.
  void restore();
  /// Back to rest, whatever was under way.
  void abandon();

 private:
  /// zero_grad() between passes means the sum that is still to be reduced as well, whether it dropped the gradient or
  /// filled it. A part may be empty, or zero by itself: who changed gradients in place did so on all ranks, which tell
  /// each other what they see.
  bool was_zeroed(Member const& m, at::Tensor const& grad) const;
  void provide();
  void drop();

  FlatParameters& flat_;
  at::Tensor sums_;     // of whole gradients, in one piece
  at::Tensor reduced_;  // of this rank's chunk
  comm::Pending reduce_;
};

}  // namespace weft::shard

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/shard/gradients.ipp>
#endif
