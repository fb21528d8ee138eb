// strategy/sharding.hpp -- how much of a model each rank keeps.
// In: nothing. Out: the sharding modes of FSDP<Mode, ...>, and the value by which the mechanism knows them.
#pragma once

#include <weft/plan/policy.hpp>

namespace weft::inline v0 {

struct ShardConfig {
  bool shard_parameters = true;       // at rest a rank keeps its part of each parameter
  bool shard_gradients = true;        // reduce-scattered rather than all-reduced
  bool shard_optimizer = true;        // states exist for the rank's part only
  bool reshard_after_forward = true;  // whole parameters are freed between forward and backward
  bool replicate = false;             // sharded over axis "shard" of the mesh, repeated over axis "replicate"
  bool operator==(ShardConfig const&) const = default;
};
using ShardPlan [[deprecated("weft: ShardPlan is ShardConfig now")]] = ShardConfig;

struct FullShard {
  using category = weft::category::sharding;
  static constexpr std::string_view name = "FullShard";
  static constexpr ShardConfig config{};
};
struct ShardGradOp {
  using category = weft::category::sharding;
  static constexpr std::string_view name = "ShardGradOp";
  static constexpr ShardConfig config{.reshard_after_forward = false};
};
struct NoShard {
  using category = weft::category::sharding;
  static constexpr std::string_view name = "NoShard";
  static constexpr ShardConfig config{
      .shard_parameters = false, .shard_gradients = false, .shard_optimizer = false, .reshard_after_forward = false};
};
struct HybridShard {
  using category = weft::category::sharding;
  static constexpr std::string_view name = "HybridShard";
  static constexpr ShardConfig config{.replicate = true};
};
struct HybridShardGradOp {
  using category = weft::category::sharding;
  static constexpr std::string_view name = "HybridShardGradOp";
  static constexpr ShardConfig config{.reshard_after_forward = false, .replicate = true};
};

// A type of one's own with such a value is a sharding even if it names no category.
template <class T>
  requires(!requires { typename T::category; } && std::is_same_v<std::remove_cvref_t<decltype(T::config)>, ShardConfig>)
struct CategoryOf<T> {
  using type = category::sharding;
};

template <class T>
concept Sharding = is_of_v<T, category::sharding> && requires { ShardConfig{T::config}; };

// The value of a sharding; of a malformed one, which composition refuses, that of FullShard.
template <class Mode>
inline constexpr ShardConfig shard_config_v{};
template <Sharding Mode>
inline constexpr ShardConfig shard_config_v<Mode> = Mode::config;

}  // namespace weft
