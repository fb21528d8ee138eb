// model/setup.ipp -- definitions of model/setup.hpp.
#pragma once

#include <weft/model/setup.hpp>

#include <utility>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/model/equal_start.hpp>
#include <weft/model/members.hpp>
#include <weft/model/precision.hpp>
#include <weft/unit/activity.hpp>
#include <weft/unit/reachable.hpp>

namespace weft::inline v0::model {
namespace stages {

/// Nobody else has the module, and nothing in it waits for a device or a strategy that is not this one.
WEFT_INLINE void claim(ModelState& state, InitReport report) {
  state.refuse_second_setup();
  state.init = std::move(report);
  state.init.uninitialized = init::uninitialized_in(*state.module);
  if (init::waits_elsewhere(*state.module, state.session->device))
    init::initialize(*state.module, [](at::Tensor const&) {});
}

/// The table of parameters that can be trained by whoever sets them up.
WEFT_INLINE void list_parameters(ModelState& state, Conversions const& conversions) {
  unit::check_reachable(*state.module);
  check_members(*state.module);
  state.table = ParameterTable::of(*state.module);
  for (auto const& [impl, conversion] : conversions)
    if (auto const row = state.table.index_of(conversion.first)) state.table.rows()[*row].dtype = conversion.second;
  if (state.table.rows().empty())
    fail<ConfigurationError>(
        "weft: setup: the model has no parameters; register them (register_parameter, register_module) in its "
        "constructor");
  for (auto const& row : state.table.rows())
    if (ShardedParameters::contains(row.tensor))
      fail<ConfigurationError>("weft: setup: parameter ", row.name,
                               " is a shard of a model that was set up before, with ", row.tensor.numel(),
                               " elements of the whole; use that model, or save its weights and load them into a new "
                               "module");
}

/// Values over all axes, before anything is divided: ranks of every axis build the same modules.
WEFT_INLINE void start_equal(ModelState& state) {
  auto const& world = state.session->world;
  if (!world || world->size() == 1) return;
  require_equal_models(*world, *state.module, state.table);
  broadcast_model(*world, *state.module, state.table);
}

/// See [Note: one parameter at a time].
WEFT_INLINE void materialize(ModelState& state) {
  init::initialize(*state.module, [&state](at::Tensor const& tensor) {
    if (auto const& world = state.session->world) broadcast_once(*world, tensor);
    auto const row = state.table.index_of(tensor);
    if (!row) return;  // a buffer
    at::NoGradGuard const no_grad;
    auto const left = state.engine->take(state.table.rows()[*row], tensor);
    if (!left.is_same(tensor)) state.table.rows()[*row].tensor.set_data(left);
  });
}

}  // namespace stages

WEFT_INLINE std::shared_ptr<ModelState> set_up(std::shared_ptr<torch::nn::Module> module, InitReport report,
                                               std::shared_ptr<comm::Session> session, SetupOptions const& options) {
  // Also inside of a scope that defers.
  c10::impl::ExcludeDispatchKeyGuard const at_once(c10::DispatchKey::DeferredInit);
  auto state = std::make_shared<ModelState>();
  state->module = std::move(module);
  state->session = std::move(session);

  stages::claim(*state, std::move(report));
  auto const conversions = convert(*state->module, options.rules, options.converts);
  if (state->session->device != at::kCPU) state->module->to(state->session->device);
  stages::list_parameters(*state, conversions);
  if (!options.initializes) init::initialize(*state->module, [](at::Tensor const&) {});
  stages::start_equal(*state);
  state->session->connect_mesh();
  state->engine = options.make_engine(*state->module, state->table,
                                      {*state->session, options.precision, state->session->mesh->names()});
  stages::materialize(*state);
  for (auto const& [impl, conversion] : conversions)  // buffers that had no memory until now
    if (!state->table.index_of(conversion.first)) convert(conversion.first, conversion.second);
  state->watch.remember(*state->module);
  if (state->engine->guards_units()) unit::adopt(*state->module, state->activity);
  return state;
}

}  // namespace weft::model
