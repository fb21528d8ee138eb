// shard/fsdp.ipp -- definitions of shard/fsdp.hpp.
#pragma once

#include <weft/shard/fsdp.hpp>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include <weft/core/build.hpp>
#include <weft/init/deferred_init.hpp>
#include <weft/model/equal_start.hpp>
#include <weft/shard/buckets.hpp>
#include <weft/shard/dtypes.hpp>
#include <weft/shard/sharding_engine.hpp>

namespace weft::inline v0::shard {

WEFT_INLINE Axes flat_axes(ShardConfig const& sharding, std::shared_ptr<comm::Communicator> ranks) {
  if (!ranks || ranks->size() == 1) return {};
  return sharding.shard_parameters ? Axes{std::move(ranks), nullptr} : Axes{nullptr, std::move(ranks)};
}

/// What the parameters of one group have in common.
struct Kind {
  at::ScalarType kept;
  Dtypes dtypes;
  bool is_trained;
  auto operator<=>(Kind const&) const = default;
};

WEFT_INLINE std::shared_ptr<model::Engine> cut(torch::nn::Module& model, model::ParameterTable& table,
                                               FsdpConfig const& config, Wrapping const& wrapping, Axes const& axes,
                                               comm::Session const& session, PrecisionConfig const& precision) {
  auto const units = Wrapper(model, table, wrapping).units();
  std::vector<UnitSize> sizes;
  for (auto const& unit : units) {
    std::size_t bytes = 0;
    for (auto const row : unit.rows)
      bytes += static_cast<std::size_t>(table.rows()[row].tensor.numel()) * c10::elementSize(table.rows()[row].dtype);
    sizes.push_back({bytes, unit.parent});
  }
  auto const bucket_of = buckets(sizes, config.bucket_bytes);
  auto const with_statistics = parameters_with_statistics(model);

  model::ShardedParameters::forget_expired();
  auto const agreement = [&](char const* topic, bool wanted = true) {
    return wanted && session.world && !session.alone ? std::make_unique<comm::ConsistencyCheck>(*session.world, topic)
                                                     : nullptr;
  };
  // In the checking grade each call is agreed on, and says more.
  auto engine = std::make_shared<Engine>(config, axes, session.ranks.global_rank, agreement("unused"),
                                         agreement("order", !session.endpoint.check_collectives));
  engine->ask_for_unknown([&model, &table] { return table.unknown_in(model); });  // both live as long as the engine
  for (std::size_t first = 0, last = 0; first < units.size(); first = last) {
    std::string what;
    // One dtype each, in all three ways, all trained or all frozen; by dtype, frozen ones first.
    std::vector<std::pair<Kind, std::vector<Member>>> members;
    for (last = first; last < units.size() && bucket_of[last] == bucket_of[first]; ++last) {
      what += (what.empty() ? "" : ", ") + units[last].describe();
      for (auto const row : units[last].rows) {
        auto const& parameter = table.rows()[row];
        if (!parameter.tensor.is_floating_point() && !parameter.tensor.is_complex())
          fail<ConfigurationError>("weft: setup: parameter ", parameter.name, " has dtype ",
                                   parameter.tensor.scalar_type(),
                                   ", which has no gradient to shard: register it as a buffer, or ignore it");
        Kind const kind{
            parameter.dtype,
            dtypes_of(parameter.dtype, with_statistics.contains(parameter.tensor.unsafeGetTensorImpl()), precision),
            parameter.trainable};
        auto list = std::find_if(members.begin(), members.end(),
                                 [&](auto const& other) { return other.first >= kind; });
        if (list == members.end() || list->first != kind) list = members.insert(list, {kind, {}});
        list->second.push_back({.name = parameter.name, .unit = units[last].describe(), .parameter = parameter.tensor});
      }
    }
    auto const parent =
        units[first].parent < 0 ? -1 : static_cast<int>(bucket_of[static_cast<std::size_t>(units[first].parent)]);
    auto& bucket = engine->add_bucket({.what = what, .parent = parent});
    for (auto& [kind, list] : members) {
      bucket.groups.push_back(
          std::make_unique<Group>(std::move(list), axes, kind.kept, kind.dtypes, what, *engine, engine->pool()));
      if (!axes.shard) continue;
      for (auto const& member : bucket.groups.back()->members())
        table.rows()[*table.index_of(member.parameter)].placements.push_back(
            {axes.shard->axis(), model::FlatRange{member.range.begin, member.range.end}});
    }
    engine->start(bucket);
    for (std::size_t i = first; i < last; ++i)
      if (units[i].unit) engine->attach(*units[i].unit, bucket_of[i], i + 1 == last);
  }

  std::unordered_map<at::TensorImpl*, std::pair<Group*, Member*>> place_of;
  for (auto const& bucket : engine->buckets())
    for (auto const& group : bucket->groups)
      for (auto& member : group->members()) place_of[member.parameter.unsafeGetTensorImpl()] = {group.get(), &member};
  init::initialize(model, [&](at::Tensor const& tensor) {
    if (session.world) model::broadcast_once(*session.world, tensor);
    if (auto const place = place_of.find(tensor.unsafeGetTensorImpl()); place != place_of.end())
      place->second.first->take(*place->second.second);
  });
  return engine;
}

WEFT_INLINE std::shared_ptr<model::Engine> make_engine(torch::nn::Module& model, model::ParameterTable& table,
                                                       FsdpConfig const& config, Wrapping const& wrapping,
                                                       Axes const& axes, comm::Session const& session,
                                                       PrecisionConfig const& precision) {
  if (session.world && session.world->size() > 1) {
    model::require_equal_models(*session.world, model, table);
    model::broadcast_model(*session.world, model, table);
  }
  return cut(model, table, config, wrapping, axes, session, precision);
}

}  // namespace weft::shard
