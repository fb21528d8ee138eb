// shard/unsharded.hpp -- parameters that are whole for a while.
// In: a group's shards. Out: memory for all of it, what fills it, and parameters that view the one or the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <c10/core/StorageImpl.h>

#include <weft/comm/pending.hpp>
#include <weft/shard/flat_parameters.hpp>

namespace weft::inline v0::shard {

class Unsharded {
 public:
  /// Makes each member's view of the whole, which has no memory yet where it is one of its own.
  explicit Unsharded(FlatParameters& flat);

  /// What the whole parameters lie in.
  c10::StorageImpl const* memory() const { return whole_->tensor().storage().unsafeGetStorageImpl(); }

  /// Memory for the whole, and the collective that fills it. A group that neither is cut nor casts is always whole.
  /// `masters`: what the optimizer steps is to be seen, not what computes.
  ///
  /// [Note: a cast goes where it is sent from] The low precision of a shard is written into this rank's own place in
  /// the whole, and gathered in place: there is no copy beside the cast, and no memory.
  void start_gather(bool masters = false);
  void finish_gather();
  /// Memory for the whole on the first rank alone, and what the optimizer steps in it. Collective over the shards.
  void gather_on_first();
  void release();
  /// Whether what was gathered is what the shards hold now. Version counters tell, as they do for autograd.
  bool is_fresh() const { return !flat_.gathers() || gathered_ == stamp(); }

  /// What the parameters are from here on: the whole, for a unit that runs. Whether they compute: masters do not.
  bool show();
  /// Or their part of the shard, for everybody else.
  void show_shards();
  /// Or shapes alone, in the dtype that they are kept in.
  void show_shapes();
  /// Takes over what was written into the whole.
  void keep();

  /// Lets go of a gather that nobody will finish.
  void abandon() { gather_ = {}; }

 private:
  /// Where masters are gathered to.
  void provide_masters();
  void show_masters(at::Tensor const& all);
  int64_t stamp() const;

  FlatParameters& flat_;
  std::optional<ResizableStorage> whole_;
  at::Tensor masters_;  // the whole, in the dtype of the shard, while it is summoned
  bool masters_shown_ = false;
  comm::Pending gather_;
  int64_t gathered_ = -1;
};

}  // namespace weft::shard

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/shard/unsharded.ipp>
#endif
