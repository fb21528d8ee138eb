// strategy/activation.hpp -- what is kept elsewhere, or computed again.
// In: module types. Out: policies for activations (beside any strategy) and for shards (inside a sharding strategy).
#pragma once

#include <weft/core/fixed_string.hpp>
#include <weft/plan/policy.hpp>

namespace weft::inline v0 {

// The activations inside these modules are dropped after forward and computed again in backward.
template <class... Blocks>
struct ActivationCheckpointing {
  using category = weft::category::memory;
  using blocks = core::TypeList<Blocks...>;
  static constexpr std::string_view name = "ActivationCheckpointing";
};

// The activations inside these modules wait for backward in host memory. Of those that are recomputed as well, their
// arguments do.
template <class... Blocks>
struct OffloadActivations {
  using category = weft::category::memory;
  using blocks = core::TypeList<Blocks...>;
  static constexpr std::string_view name = "OffloadActivations";
};

// Which of a Fabric's policies of activations hold: all, unless a program says otherwise before it sets a model up.
struct ActivationConfig {
  bool recompute = true;
  bool offload = true;
  bool operator==(ActivationConfig const&) const = default;
};
using ActivationPlan [[deprecated("weft: ActivationPlan is ActivationConfig now")]] = ActivationConfig;

struct OffloadConfig {
  bool parameters = false;
  bool optimizer = false;
  bool operator==(OffloadConfig const&) const = default;
};

// Shards, gradients and optimizer state live in host memory, and the optimizer steps there.
struct OffloadParams {
  using category = weft::category::offload;
  static constexpr std::string_view name = "OffloadParams";
  static constexpr OffloadConfig config{.parameters = true, .optimizer = true};
};

// Parameters stay on the device, optimizer state does not.
struct OffloadOptimizer {
  using category = weft::category::offload;
  static constexpr std::string_view name = "OffloadOptimizer";
  static constexpr OffloadConfig config{.optimizer = true};
};

// What is offloaded goes on to a file below Directory.
template <core::FixedString Directory>
struct Nvme {
  using category = weft::category::offload;
  static constexpr std::string_view name = "Nvme";
  static constexpr std::string_view directory = Directory.view();
  static constexpr OffloadConfig config{};
};

template <class List>
inline constexpr OffloadConfig offload_config_v{};
template <class... Policies>
inline constexpr OffloadConfig offload_config_v<core::TypeList<Policies...>>{
    .parameters = (Policies::config.parameters || ...), .optimizer = (Policies::config.optimizer || ...)};

}  // namespace weft
