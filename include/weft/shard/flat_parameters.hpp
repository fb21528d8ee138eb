// shard/flat_parameters.hpp -- parameters that travel together, at rest.
// In: whole parameters of one dtype, all trainable or all frozen, the ranks they are cut over, and the dtypes they
// compute in. Out: one flat shard, of which each parameter has a part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <weft/comm/autograd_node.hpp>
#include <weft/shard/axes.hpp>
#include <weft/shard/buffer_pool.hpp>
#include <weft/shard/dtypes.hpp>
#include <weft/shard/layout.hpp>

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
  at::Tensor whole{};            // a view of what is gathered, with the parameter's shape and strides
  at::Tensor part{};             // a view of the shard: one dim; the parameter's shape if it is not cut
  at::Tensor arrived{};          // autograd's own gradient, until all of the group's are there
  at::Tensor gradient{};         // a view of the flat gradients while there are some
  comm::NodePtr accumulator{};   // of the whole parameter
  comm::NodePtr outside{};       // what a use of the shard leads to: comm::RefuseGradient
  at::Tensor before{};           // the shard's gradient from before this backward pass
  bool holds = false;            // a gradient has arrived, or its slice of the flat gradients has a sum in it
  bool held = false;             // a sum, when this backward pass began
  bool shows_sum = false;        // the parameter's grad is this rank's part of that sum, not reduced yet
  uint32_t version = 0;          // of the grad that was handed out beside a sum
  at::Tensor shown{};            // that grad
};

/// What a group's unsharded parameters and its gradients are both made of.
struct FlatParameters {
  FlatParameters(std::vector<Member> list, Axes ranks, at::ScalarType kept, Dtypes numbers, std::string units,
                 BufferPool& buffers);

  bool is_cut() const { return axes.shard && layout.total() > 0; }
  /// Whether the whole is a memory of its own, filled from the shard before each use.
  bool gathers() const { return is_cut() || casts; }
  /// Whether what was reduced is what is handed out, in memory and dtype.
  bool reduces_in_place() const { return dtypes.reduced == shard.scalar_type(); }

  /// A member of a flat buffer of all ranks, without its shape.
  at::Tensor slice(at::Tensor const& flat, std::size_t i) const {
    return flat.narrow(0, layout.offset(i), layout.numel(i));
  }
  /// This rank's place in such a buffer; all of it where nothing is cut.
  at::Tensor own_chunk(at::Tensor const& flat) const {
    return is_cut() ? flat.narrow(0, axes.shard_rank() * layout.chunk(), layout.chunk()) : flat;
  }
  /// A member's part of this rank's chunk.
  at::Tensor part_of(at::Tensor const& chunk, std::size_t i) const;

  Axes axes;
  Dtypes dtypes;
  bool casts = false;  // parameters compute in another dtype than they are kept in
  std::vector<Member> members;
  Layout layout;
  std::string what;  // the units whose parameters these are
  BufferPool* pool;
  at::Tensor shard;
  std::shared_ptr<void> registered{};  // of the shard, so it goes before it
};

}  // namespace weft::shard

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/shard/flat_parameters.ipp>
#endif
