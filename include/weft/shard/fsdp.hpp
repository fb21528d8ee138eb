// shard/fsdp.hpp -- the mechanism of FSDP.
// In: the strategy's config, wrap policies and mesh. Out: for each model an engine that keeps it sharded.
#pragma once

#include <memory>

#include <torch/nn/module.h>

#include <weft/comm/mechanism_context.hpp>
#include <weft/model/engine.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/shard/wrap.hpp>
#include <weft/strategy/fsdp.hpp>
#include <weft/strategy/mechanism.hpp>

namespace weft::inline v0 {
namespace shard {

/// Shards a model that is equal on all ranks, unit after unit. A parameter that has no memory yet is taken later, by
/// the engine's take().
std::shared_ptr<model::Engine> shard_model(torch::nn::Module& model, model::ParameterTable& table,
                                           FsdpConfig const& config, Wrapping const& wrapping,
                                           MechanismContext const& context);

}  // namespace shard

template <class... Options>
struct Mechanism<FSDP<Options...>> : MechanismDefaults {
  using Strategy = FSDP<Options...>;
  static constexpr ShardConfig sharding = Strategy::config.sharding;
  static_assert(sharding.shard_gradients == sharding.shard_parameters &&
                    sharding.shard_optimizer == sharding.shard_parameters,
                "weft: FSDP<Mode>: this Mode cuts some of parameters, gradients and optimizer states and keeps others "
                "whole: write ZeRO<1> or ZeRO<2> for "
                "that, or cut all three or none");
  static_assert(!Strategy::config.offload.parameters && !Strategy::config.offload.optimizer,
                "weft: FSDP<OffloadParams | OffloadOptimizer> parses, but offloading is not built yet: leave it out "
                "until it lands");

  static constexpr bool initializes = true;
  static constexpr bool converts = true;
  static constexpr bool equal_gradients = true;

  template <class Derived>
  class Mixin {
   public:
    /// The config of the type, which a program may still change before it sets a model up.
    FsdpConfig& config() { return config_; }

   protected:
    friend Derived;
    Mixin() = default;

    std::shared_ptr<model::Engine> make_engine(torch::nn::Module& model, model::ParameterTable& table,
                                               MechanismContext const& context) {
      return shard::shard_model(model, table, config_, shard::wrapping_of_strategy<Strategy>(), context);
    }

   private:
    FsdpConfig config_ = Strategy::config;
  };
};

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/shard/fsdp.ipp>
#endif
