// model/activation_rules.hpp -- the policies of memory, carried out.
// In: a model, and ActivationCheckpointing<...> and OffloadActivations<...> of its Fabric. Out: units that do as they
// say, or an error that names what matches nothing.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <torch/nn/module.h>

#include <weft/activation/activations.hpp>
#include <weft/core/type_list.hpp>
#include <weft/strategy/activation.hpp>
#include <weft/unit/activity.hpp>
#include <weft/unit/blocks.hpp>
#include <weft/unit/hooks.hpp>
#include <weft/unit/names.hpp>

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

void tell(unit::UnitBase& unit, activation::Activations activations);

}  // namespace detail

template <class... Policies>
std::vector<MemoryRule> memory_rules(core::TypeList<Policies...>, ActivationConfig const& config = {}) {
  std::vector<MemoryRule> rules;
  (detail::add_rules(rules, std::type_identity<Policies>{}), ...);
  std::erase_if(rules, [&](MemoryRule const& rule) { return rule.recomputes ? !config.recompute : !config.offload; });
  return rules;
}

/// Tells each unit what becomes of its activations.
void set_activations(torch::nn::Module& root, std::vector<MemoryRule> const& rules,
                     std::shared_ptr<activation::ActivationStore> const& store);

/// A clone's units do with their activations what the original's do.
void copy_activations(torch::nn::Module& original, torch::nn::Module& clone,
                      std::shared_ptr<activation::detail::ReloadAhead> const& ahead =
                          std::make_shared<activation::detail::ReloadAhead>());

/// Undoes set_activations(root, ...).
inline void reset_activations(torch::nn::Module& root) {
  unit::for_each_unit(root, [](std::string const&, unit::UnitBase& unit) { unit.unit_set_activations(nullptr); });
}

}  // namespace weft::model

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/model/activation_rules.ipp>
#endif
