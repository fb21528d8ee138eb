// data_parallel/ddp.hpp -- the mechanism of DDP.
// In: the strategy's config and hook. Out: for each model an engine that keeps its replicas equal.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>

#include <weft/comm/mechanism_context.hpp>
#include <weft/data_parallel/hooks.hpp>
#include <weft/data_parallel/power_sgd.hpp>
#include <weft/model/engine.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/strategy/ddp.hpp>
#include <weft/strategy/mechanism.hpp>

namespace weft::inline v0 {
namespace data_parallel {

/// Of a model that is equal on all ranks.
std::shared_ptr<model::Engine> replicate(torch::nn::Module& model, model::ParameterTable& table,
                                         DdpConfig const& config, std::shared_ptr<comm::Communicator> ranks,
                                         std::unique_ptr<c10d::CommHookInterface> hook);

}  // namespace data_parallel

template <class... Options>
struct Mechanism<DDP<Options...>> : MechanismDefaults {
  using HookPolicy = typename DDP<Options...>::hook;
  using Hook = typename data_parallel::HookOf<HookPolicy>::type;

  static constexpr bool plain = std::is_same_v<HookPolicy, AllReduce>;
  static_assert(plain || data_parallel::BlockingHook<Hook> || data_parallel::FutureHook<Hook>,
                "weft: CommHook<Hook>: Hook needs at::Tensor operator()(c10d::GradBucket&, weft::comm::Communicator&), "
                "or one that returns a c10::ivalue::Future");

  static constexpr bool joins = true;
  static constexpr bool equal_gradients = true;

  template <class Derived>
  class Mixin {
   public:
    /// The config of the type, which a program may still change before it sets a model up.
    DdpConfig& config() { return config_; }

   protected:
    friend Derived;
    Mixin() = default;

    std::shared_ptr<model::Engine> make_engine(torch::nn::Module& model, model::ParameterTable& table,
                                               MechanismContext const& context) {
      auto const ranks = context.ranks();
      if (!ranks) return std::make_shared<model::Engine>();  // no replicas along its axes
      std::unique_ptr<c10d::CommHookInterface> hook;
      if constexpr (plain)
        hook = data_parallel::hook_of(context.precision, ranks);
      else
        hook = std::make_unique<data_parallel::HookAdapter<Hook>>(std::make_shared<Hook>(), ranks);
      return data_parallel::replicate(model, table, config_, ranks, std::move(hook));
    }

   private:
    DdpConfig config_ = DDP<Options...>::config;
  };
};

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data_parallel/ddp.ipp>
#endif
