// model/activation_rules.hpp -- the policies of memory, carried out.
// In: a model, and ActivationCheckpointing<...> and OffloadActivations<...> of its Fabric. Out: units that do as they
// say, or an error that names what matches nothing.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <weft/activation/activations.hpp>
#include <weft/core/error.hpp>
#include <weft/core/type_list.hpp>
#include <weft/strategy/activation.hpp>
#include <weft/unit/activity.hpp>
#include <weft/unit/blocks.hpp>
#include <weft/unit/hooks.hpp>
#include <weft/unit/names.hpp>
#include <weft/unit/walk.hpp>

namespace weft::inline v0::model {

/// What the policies ask for, without their types.
struct MemoryRule {
  std::string text;  // "ActivationCheckpointing<TransformerBlock>"
  std::function<bool(torch::nn::Module&)> matches;
  bool recomputes = false;  // else it offloads
};

namespace detail {

template <class Block>
constexpr bool check_checkpointed_block() {
  static_assert(
      unit::is_module_block_v<Block>,
      "weft: ActivationCheckpointing<Block>: Block is no module: write a module holder, or the class it holds");
  static_assert(!unit::is_module_block_v<Block> || unit::is_unit_block_v<Block>,
                "weft: ActivationCheckpointing<Block>: Block is not a unit: declare it with WEFT_MODULE(Block) instead "
                "of TORCH_MODULE(Block), take the layer of "
                "weft::nn, or call weft::checkpoint(f, x) in forward");
  return true;
}
template <class Block>
constexpr bool check_offloaded_block() {
  static_assert(unit::is_module_block_v<Block>,
                "weft: OffloadActivations<Block>: Block is no module: write a module holder, or the class it holds");
  static_assert(!unit::is_module_block_v<Block> || unit::is_unit_block_v<Block>,
                "weft: OffloadActivations<Block>: Block is not a unit: declare it with WEFT_MODULE(Block) instead of "
                "TORCH_MODULE(Block), or take the layer of weft::nn");
  return true;
}

template <class Block>
void add_rule(std::vector<MemoryRule>& rules, char const* policy, bool recomputes) {
  if constexpr (unit::is_module_block_v<Block>)
    rules.push_back(
        {std::string(policy) + "<" + std::string(core::type_name<Block>()) + ">", &unit::is_block<Block>, recomputes});
}
template <class... Blocks>
void add_rules(std::vector<MemoryRule>& rules, std::type_identity<ActivationCheckpointing<Blocks...>>) {
  static_assert((check_checkpointed_block<Blocks>() && ...));
  (add_rule<Blocks>(rules, "ActivationCheckpointing", true), ...);
}
template <class... Blocks>
void add_rules(std::vector<MemoryRule>& rules, std::type_identity<OffloadActivations<Blocks...>>) {
  static_assert((check_offloaded_block<Blocks>() && ...));
  (add_rule<Blocks>(rules, "OffloadActivations", false), ...);
}

inline void tell(unit::UnitBase& unit, activation::Activations activations) {
  auto& module = unit.unit_module();
  activations.module = module.weak_from_this();
  for (auto const& buffer : module.buffers())
    if (buffer.defined()) activations.buffers.push_back(buffer);
  if (activations.store) activations.constants = activations.buffers;
  if (activations.store)
    for (auto const& parameter : module.parameters()) activations.constants.push_back(parameter);
  unit.unit_set_activations(std::make_shared<activation::Activations const>(std::move(activations)));
}

}  // namespace detail

template <class... Policies>
std::vector<MemoryRule> memory_rules(core::TypeList<Policies...>, ActivationConfig const& config = {}) {
  std::vector<MemoryRule> rules;
  (detail::add_rules(rules, std::type_identity<Policies>{}), ...);
  std::erase_if(rules, [&](MemoryRule const& rule) { return rule.recomputes ? !config.recompute : !config.offload; });
  return rules;
}

/// Tells each unit what becomes of its activations.
inline void set_activations(torch::nn::Module& root, std::vector<MemoryRule> const& rules,
                            std::shared_ptr<activation::ActivationStore> const& store) {
  std::vector<bool> matched(rules.size(), false);
  std::unordered_map<unit::UnitBase*, activation::Activations> found;
  unit::for_each_module(root, [&](std::string const& path, torch::nn::Module& module) {
    for (std::size_t i = 0; i < rules.size(); ++i) {
      if (!rules[i].matches(module)) continue;
      matched[i] = true;
      auto* const unit = dynamic_cast<unit::UnitBase*>(&module);
      if (!unit)
        fail<ConfigurationError>("weft: setup: ", rules[i].text, " matches ", path, ", a plain ",
                                 unit::shown_name(module.name()),
                                 " whose forward cannot be intercepted: build it as a unit (WEFT_MODULE, weft::nn)");
      auto& activations = found[unit];
      if (activations.what.empty()) activations.what = "unit " + unit::Site{path, unit->unit_type()}.describe();
      activations.recomputes = activations.recomputes || rules[i].recomputes;
      if (!rules[i].recomputes) activations.store = store;
    }
  });
  for (std::size_t i = 0; i < matched.size(); ++i)
    if (!matched[i])
      fail<ConfigurationError>("weft: setup: ", rules[i].text,
                               " matches no module of the model, so it would save nothing; its units are ",
                               unit::known_units(root));
  auto const said = std::make_shared<std::atomic<bool>>(false);
  auto const ahead = std::make_shared<activation::detail::ReloadAhead>();
  for (auto& [unit, activations] : found) {
    if (activations.store) activations.ahead = ahead;
    activations.said = said;
    detail::tell(*unit, std::move(activations));
  }
}

/// A clone's units do with their activations what the original's do.
inline void copy_activations(torch::nn::Module& original, torch::nn::Module& clone,
                             std::shared_ptr<activation::detail::ReloadAhead> const& ahead =
                                 std::make_shared<activation::detail::ReloadAhead>()) {
  if (auto* const unit = dynamic_cast<unit::UnitBase*>(&original))
    if (auto const activations = unit->unit_activations())
      detail::tell(dynamic_cast<unit::UnitBase&>(clone), {.what = activations->what,
                                                          .recomputes = activations->recomputes,
                                                          .store = activations->store,
                                                          .ahead = ahead,
                                                          .said = activations->said});
  auto const clones = clone.named_children();
  for (auto const& child : original.named_children())
    if (child.value()) copy_activations(*child.value(), *clones[child.key()], ahead);
}

/// Undoes set_activations(root, ...).
inline void reset_activations(torch::nn::Module& root) {
  unit::for_each_unit(root, [](std::string const&, unit::UnitBase& unit) { unit.unit_set_activations(nullptr); });
}

}  // namespace weft::model
