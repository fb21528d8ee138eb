// shard/fsdp.ipp -- definitions of shard/fsdp.hpp.
#pragma once

#include <weft/shard/fsdp.hpp>

#include <algorithm>
#include <vector>

#include <weft/core/build.hpp>
#include <weft/shard/axes.hpp>
#include <weft/shard/buckets.hpp>
#include <weft/shard/dtypes.hpp>
#include <weft/shard/sharding_engine.hpp>

namespace weft::inline v0::shard {

/// What the parameters of one group have in common.
struct Kind {
  at::ScalarType kept;
  Dtypes dtypes;
  bool is_trained;
  auto operator<=>(Kind const&) const = default;
};

WEFT_INLINE std::shared_ptr<model::Engine> shard_model(torch::nn::Module& model, model::ParameterTable& table,
                                                       FsdpConfig const& config, Wrapping const& wrapping,
                                                       MechanismContext const& context) {
  auto const axes = axes_of(config.sharding, context);
  auto const& session = context.session;
  auto const units = Wrapper(model, table, wrapping).units();
  for (auto& row : table.rows()) row.ignored = true;
  for (auto const& unit : units)
    for (auto const row : unit.rows) table.rows()[row].ignored = false;
  std::vector<UnitSize> sizes;
  for (auto const& unit : units) {
    std::size_t bytes = 0;
    for (auto const row : unit.rows)
      bytes += static_cast<std::size_t>(table.rows()[row].local_numel()) * c10::elementSize(table.rows()[row].dtype);
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
  auto engine = std::make_shared<Engine>(table, config, axes, session.ranks.global_rank, agreement("unused"),
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
        Kind const kind{parameter.dtype,
                        dtypes_of(parameter.dtype, with_statistics.contains(parameter.tensor.unsafeGetTensorImpl()),
                                  context.precision),
                        parameter.trainable};
        auto list = std::find_if(members.begin(), members.end(),
                                 [&](auto const& other) { return other.first >= kind; });
        if (list == members.end() || list->first != kind) list = members.insert(list, {kind, {}});
        list->second.push_back({.name = parameter.name,
                                .unit = units[last].describe(),
                                .parameter = parameter.tensor,
                                .shape = parameter.local_shape,
                                .strides = parameter.local_strides,
                                .row = row});
      }
    }
    auto const parent =
        units[first].parent < 0 ? -1 : static_cast<int>(bucket_of[static_cast<std::size_t>(units[first].parent)]);
    auto& bucket = engine->add_bucket({.what = what, .parent = parent});
    for (auto& [kind, list] : members) {
      bucket.groups.push_back(
          std::make_unique<Group>(std::move(list), axes, kind.kept, kind.dtypes, what, *engine, engine->pool()));
      if (!axes.shard) continue;
      auto const& group = *bucket.groups.back();
      for (std::size_t i = 0; i < group.members().size(); ++i)
        table.rows()[group.members()[i].row].placements.push_back(
            {axes.shard->axis(), FlatShard{group.layout().offset(i), group.layout().chunk()}});
    }
    engine->start(bucket);
    for (std::size_t i = first; i < last; ++i)
      if (units[i].unit) engine->attach(*units[i].unit, bucket_of[i], i + 1 == last);
  }

  return engine;
}

}  // namespace weft::shard
