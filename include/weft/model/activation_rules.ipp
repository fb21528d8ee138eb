// model/activation_rules.ipp -- definitions of model/activation_rules.hpp.
#pragma once

#include <weft/model/activation_rules.hpp>

#include <atomic>
#include <unordered_map>
#include <utility>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/unit/walk.hpp>

namespace weft::inline v0::model::detail {

WEFT_INLINE void tell(unit::UnitBase& unit, activation::Activations activations) {
  auto& module = unit.unit_module();
  activations.module = module.weak_from_this();
  for (auto const& buffer : module.buffers())
    if (buffer.defined()) activations.buffers.push_back(buffer);
  if (activations.store) activations.constants = activations.buffers;
  if (activations.store)
    for (auto const& parameter : module.parameters()) activations.constants.push_back(parameter);
  unit.unit_set_activations(std::make_shared<activation::Activations const>(std::move(activations)));
}

}  // namespace weft::model::detail

namespace weft::inline v0::model {

WEFT_INLINE void set_activations(torch::nn::Module& root, std::vector<MemoryRule> const& rules,
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

WEFT_INLINE void copy_activations(torch::nn::Module& original, torch::nn::Module& clone,
                                  std::shared_ptr<activation::detail::ReloadAhead> const& ahead) {
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

}  // namespace weft::model
