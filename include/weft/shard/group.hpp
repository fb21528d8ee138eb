// shard/group.hpp -- parameters that travel together.
// In: whole parameters of one dtype, all trainable or all frozen, the ranks they are cut over, and the dtypes they
// compute in. Out: unsharded before forward, a shard after it, gradients reduced into shards.
//
//                     rank 0's chunk   rank 1's chunk
//   whole             a a a a b b b b  b b c c c c c .   memory only while unsharded; parameters view it then
//   shard                              b b c c c c c .   of rank 1, always; parameters view their part of it at rest
//   flat gradients    a a a a b b b b  b b c c c c c .   once they have arrived, until they have been reduced
#pragma once

#include <string>
#include <vector>

#include <weft/shard/flat_parameters.hpp>
#include <weft/shard/gradients.hpp>
#include <weft/shard/unsharded.hpp>
#include <weft/unit/gradient_hook.hpp>

namespace weft::inline v0::shard {

class Group;

/// Hears of each gradient of a whole parameter, once per backward pass, when it is complete.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  virtual void gradient_arrived(Group& group, Member& member) = 0;
};

class Group {
  FlatParameters flat_;

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

  std::vector<Member>& members() { return flat_.members; }
  std::vector<Member> const& members() const { return flat_.members; }
  Layout const& layout() const { return flat_.layout; }
  /// Whether parameters compute in another dtype than they are kept in.
  bool casts() const { return flat_.casts; }
  bool gathers() const { return flat_.gathers(); }

  /// Parameters must be the tensors that setup left: what replaced one would be neither gathered nor reduced.
  void check();

  /// Parameters are whole from here on, for a unit that runs: their gradients are heard of.
  void show_unsharded();

  /// No gradient is heard of any more: the graph may outlive the group.
  void disconnect() {
    for (auto& hook : hooks_) hook.disconnect();
  }

  /// Back to rest, whatever was under way.
  void abandon() {
    unsharded.abandon();
    gradients.abandon();
  }

  Unsharded unsharded;
  Gradients gradients;

 private:
  /// Made while the parameter is whole, since it remembers the shape, and kept, since LibTorch's pointer to it is weak.
  void hold_accumulator(Member& m);
  /// By the storages' identity: where the memory is, a released one doesn't say.
  static bool is_in(at::Tensor const& tensor, at::Tensor const& memory);

  GradientListener* listener_;
  std::vector<unit::GradientHook> hooks_;
};

}  // namespace weft::shard

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/shard/group.ipp>
#endif
