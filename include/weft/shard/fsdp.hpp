// shard/fsdp.hpp -- the mechanism of FSDP.
// In: the strategy's config, wrap policies and mesh. Out: for each model an engine that keeps it sharded.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <torch/nn/module.h>

#include <weft/comm/session.hpp>
#include <weft/model/engine.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/plan/grid.hpp>
#include <weft/shard/axes.hpp>
#include <weft/shard/wrap.hpp>
#include <weft/strategy/fsdp.hpp>
#include <weft/strategy/mechanism.hpp>

namespace weft::inline v0 {
namespace shard {

/// The config's axes on a job that runs: all ranks along "shard", or along "replicate" if parameters stay whole. A
/// group of one is no group.
Axes flat_axes(ShardConfig const& sharding, std::shared_ptr<comm::Communicator> ranks);

/// Cuts a model that is equal on all ranks, unit after unit. A parameter that has no memory yet gets it here, from rank
/// 0, and has it until its part is kept: one after another.
std::shared_ptr<model::Engine> cut(torch::nn::Module& model, model::ParameterTable& table, FsdpConfig const& config,
                                   Wrapping const& wrapping, Axes const& axes, comm::Session const& session,
                                   PrecisionConfig const& precision = {});

/// Collective: every rank calls it with its model, and leaves it with its part of rank 0's.
std::shared_ptr<model::Engine> make_engine(torch::nn::Module& model, model::ParameterTable& table,
                                           FsdpConfig const& config, Wrapping const& wrapping, Axes const& axes,
                                           comm::Session const& session, PrecisionConfig const& precision = {});

}  // namespace shard

template <class... Options>
struct Mechanism<FSDP<Options...>> {
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

  template <class Derived>
  class Mixin {
   public:
    /// The config of the type, which a program may still change before it sets a model up.
    FsdpConfig& config() { return config_; }

   protected:
    friend Derived;
    Mixin() = default;

    static constexpr bool initializes = true;  // what has no memory yet
    static constexpr bool converts = true;     // what had none: parameters go into the dtype that the table says

    std::shared_ptr<model::Engine> make_engine(torch::nn::Module& model, model::ParameterTable& table) {
      auto& session = static_cast<Derived&>(*this).session();
      return shard::make_engine(model, table, config_, shard::wrapping_of_strategy<Strategy>(), axes(session), session,
                                Derived::composition::precision::config);
    }

   private:
    shard::Axes axes(comm::Session& session) const {
      if constexpr (sharding.replicate) {
        auto const grid = resolve<typename Derived::composition::mesh>(session.ranks.world_size);
        auto const along = [&](std::string_view axis) {
          auto const members = grid.group(session.ranks.global_rank, axis);
          return members.size() == 1 ? nullptr : session.connect_axis(std::string(axis), members);
        };
        auto shard = along("shard");
        return {std::move(shard), along("replicate")};
      } else {
        return shard::flat_axes(sharding, session.world);
      }
    }

    FsdpConfig config_ = Strategy::config;
  };
};

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/shard/fsdp.ipp>
#endif
