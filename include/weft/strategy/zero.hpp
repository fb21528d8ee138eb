// strategy/zero.hpp -- DeepSpeed's vocabulary: what is sharded goes by a stage.
// In: a stage with options, or a configuration in DeepSpeed's JSON. Out: the same config as FSDP's.
#pragma once

#include <weft/strategy/fsdp.hpp>

namespace weft::inline v0 {

namespace strategy {

// 1: optimizer states; 2: and gradients; 3: and parameters.
constexpr ShardConfig zero_sharding(int stage) {
  return {.shard_parameters = stage >= 3,
          .shard_gradients = stage >= 2,
          .shard_optimizer = true,
          .reshard_after_forward = stage >= 3};
}

}  // namespace strategy

template <int Stage, class... Options>
struct ZeRO {
  using category = weft::category::strategy;
  using options = core::TypeList<Options...>;
  using takes = core::TypeList<weft::category::wrap, weft::category::offload, weft::category::prefetch,
                               weft::category::rate_limit, weft::category::bucket>;
  static constexpr std::string_view name = "ZeRO";
  static constexpr Topology topology{.mesh = false};
  static constexpr bool casts_parameters = true;
  static constexpr bool is_built = false;
  static constexpr int stage = Stage;

  using wrap = plan::policies_t<weft::category::wrap, options>;
  static constexpr FsdpConfig config = strategy::shard_config<options>(strategy::zero_sharding(Stage));
};

// DeepSpeed<R"({"zero_optimization": {"stage": 2}})">, or DeepSpeed<> with a file named when the program runs.
template <core::FixedString Config>
struct DeepSpeed {
  using category = weft::category::strategy;
  static constexpr std::string_view name = "DeepSpeed";
  static constexpr auto config = Config;
  static constexpr Topology topology{.mesh = false};
  static constexpr bool is_built = false;
};

template <class S>
inline constexpr int zero_stage_v = 0;  // 0: not ZeRO
template <int Stage, class... Options>
inline constexpr int zero_stage_v<ZeRO<Stage, Options...>> = Stage;
template <class S>
inline constexpr bool is_zero_v = false;
template <int Stage, class... Options>
inline constexpr bool is_zero_v<ZeRO<Stage, Options...>> = true;

}  // namespace weft
