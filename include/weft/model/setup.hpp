// model/setup.hpp -- a module becomes a model, stage by stage.
// In: a module, its session, and the mechanism that makes its engine. Out: the state that wrapped models share.
#pragma once

#include <memory>

#include <c10/util/FunctionRef.h>
#include <torch/nn/module.h>

#include <weft/comm/mechanism_context.hpp>
#include <weft/init/deferred_init.hpp>
#include <weft/model/engine.hpp>
#include <weft/model/model.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/precision/rules.hpp>

namespace weft::inline v0::model {

/// What a mechanism says about itself (strategy/mechanism.hpp), and how it is called.
struct SetupOptions {
  bool initializes = false;
  bool converts = false;
  PrecisionConfig precision{};
  precision::Rules const& rules;
  c10::function_ref<std::shared_ptr<Engine>(torch::nn::Module&, ParameterTable&, MechanismContext const&)> make_engine;
};

/// Collective: all ranks of the session call it with modules that were built alike, whose values become rank 0's.
///
/// [Note: one parameter at a time] A parameter of a deferred module gets its memory and its values, goes through the
/// engines, outermost first, each of which keeps what is its (Engine::take), and what is left stays on this rank; then
/// comes the next one. tests/shard/deferred_init.cpp
std::shared_ptr<ModelState> set_up(std::shared_ptr<torch::nn::Module> module, InitReport report,
                                   std::shared_ptr<comm::Session> session, SetupOptions const& options);

}  // namespace weft::model

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/model/setup.ipp>
#endif
