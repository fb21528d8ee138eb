// strategy/sharding.hpp -- how much of a model each rank keeps.
// In: nothing. Out: the sharding modes of FSDP<Mode, ...>, and the value by which the mechanism knows them.
#pragma once

#include <weft/core/policy.hpp>

namespace weft::inline v0 {

struct ShardPlan {
  bool shard_parameters = true;       // at rest a rank keeps its part of each parameter
  bool shard_gradients = true;        // reduce-scattered rather than all-reduced
  bool shard_optimizer = true;        // states exist for the rank's part only
  bool reshard_after_forward = true;  // whole parameters are freed between forward and backward
  bool replicate = false;             // sharded over axis "shard" of the mesh, repeated over axis "replicate"
  bool operator==(ShardPlan const&) const = default;
};

struct FullShard {
  using category = weft::category::sharding;
  static constexpr std::string_view name = "FullShard";
  static constexpr ShardPlan plan{};
};
struct ShardGradOp {
  using category = weft::category::sharding;
  static constexpr std::string_view name = "ShardGradOp";
  static constexpr ShardPlan plan{.reshard_after_forward = false};
};
struct NoShard {
  using category = weft::category::sharding;
  static constexpr std::string_view name = "NoShard";
  static constexpr ShardPlan plan{.shard_parameters = false,
                                  .shard_gradients = false,
                                  .shard_optimizer = false,
                                  .reshard_after_forward = false};
};
struct HybridShard {
  using category = weft::category::sharding;
  static constexpr std::string_view name = "HybridShard";
  static constexpr ShardPlan plan{.replicate = true};
};
struct HybridShardGradOp {
  using category = weft::category::sharding;
  static constexpr std::string_view name = "HybridShardGradOp";
  static constexpr ShardPlan plan{.reshard_after_forward = false, .replicate = true};
};

// A type of one's own with such a value is a sharding even if it names no category.
template <class T>
  requires(!requires { typename T::category; } && std::is_same_v<std::remove_cvref_t<decltype(T::plan)>, ShardPlan>)
struct CategoryOf<T> {
  using type = category::sharding;
};

template <class T>
concept Sharding = is_of_v<T, category::sharding> && requires { ShardPlan{T::plan}; };

// The value of a sharding; of a malformed one, which composition refuses, that of FullShard.
template <class Mode>
inline constexpr ShardPlan shard_plan_v{};
template <Sharding Mode>
inline constexpr ShardPlan shard_plan_v<Mode> = Mode::plan;

}  // namespace weft
