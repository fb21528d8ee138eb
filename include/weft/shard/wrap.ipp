// shard/wrap.ipp -- definitions of shard/wrap.hpp.
#pragma once

#include <weft/shard/wrap.hpp>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/unit/activity.hpp>
#include <weft/unit/walk.hpp>

namespace weft::inline v0::shard {

WEFT_INLINE std::vector<WrappedUnit> Wrapper::units() {
  if (wrapping_.min_params) choose_by_size(root_, "");
  std::vector<bool> matched(wrapping_.rules.size(), false);
  unit::for_each_module(root_, [&](std::string const& path, torch::nn::Module& module) {
    for (std::size_t i = 0; i < wrapping_.rules.size(); ++i)
      if (wrapping_.rules[i].matches(module, path)) {
        matched[i] = true;
        choose(module, path, wrapping_.rules[i].text);
      }
  });
  for (std::size_t i = 0; i < matched.size(); ++i)
    if (!matched[i])
      fail<ConfigurationError>("weft: setup: ", wrapping_.rules[i].text,
                               " matches no module of the model, so all of it would be one unit; its units are ",
                               unit::known_units(root_));
  if (wrapping_.min_params && chosen_.empty())
    fail<ConfigurationError>("weft: setup: SizeBased<", *wrapping_.min_params,
                             "> matches no unit of the model, so all of it would be one unit; its units are ",
                             unit::known_units(root_));
  units_.push_back({});
  collect(root_, "", 0, false);
  return std::move(units_);
}

WEFT_INLINE void Wrapper::choose(torch::nn::Module& module, std::string const& path, std::string const& rule) {
  if (&module == &root_) return;
  if (!dynamic_cast<unit::UnitBase*>(&module))
    fail<ConfigurationError>("weft: setup: ", rule, " matches ", path, ", a plain ", unit::shown_name(module.name()),
                             " whose forward cannot be intercepted: build it as a unit (WEFT_MODULE, weft::nn)");
  chosen_.insert(&module);
}

WEFT_INLINE int64_t Wrapper::choose_by_size(torch::nn::Module& module, std::string const& path) {
  int64_t own = 0, inner = 0;
  for (auto const& parameter : module.named_parameters(/*recurse=*/false))
    if (parameter.value().defined()) own += parameter.value().numel();
  for (auto const& child : module.named_children())
    if (child.value()) inner += choose_by_size(*child.value(), unit::join_path(path, child.key()));
  bool const is_unit = dynamic_cast<unit::UnitBase*>(&module) != nullptr;
  if (&module != &root_ && !is_unit && own >= *wrapping_.min_params)
    fail<ConfigurationError>("weft: setup: SizeBased<", *wrapping_.min_params, ">: ", path, ", a plain ",
                             unit::shown_name(module.name()), ", has ", own,
                             " parameters and cannot be a unit of its own: take the layer of weft::nn, declare it "
                             "with WEFT_MODULE, or raise the limit");
  if (&module == &root_ || !is_unit || own + inner < *wrapping_.min_params) return own + inner;
  chosen_.insert(&module);
  return 0;
}

WEFT_INLINE void Wrapper::collect(torch::nn::Module& module, std::string const& path, std::size_t unit, bool ignored) {
  ignored = ignored || wrapping_.ignores_module(module);
  if (chosen_.count(&module) && !ignored) {
    if (!collected_.insert(&module).second) return;  // registered twice: its parameters are there already
    auto const parent = static_cast<int>(unit);
    if (auto& around = units_[unit]; !around.before_inner) around.before_inner = around.rows.size();
    unit = units_.size();
    units_.push_back({.path = path, .unit = dynamic_cast<unit::UnitBase*>(&module), .parent = parent});
  }
  for (auto const& parameter : module.named_parameters(/*recurse=*/false))
    if (parameter.value().defined()) add(unit::join_path(path, parameter.key()), parameter.value(), unit, ignored);
  for (auto const& child : module.named_children())
    if (child.value()) collect(*child.value(), unit::join_path(path, child.key()), unit, ignored);
}

WEFT_INLINE void Wrapper::add(std::string const& name, at::Tensor const& tensor, std::size_t unit, bool ignored) {
  auto const row = *table_.index_of(tensor);
  if (ignored || wrapping_.ignores_parameter(name, tensor)) return;
  auto const [known, is_new] = owner_of_.emplace(row, unit);
  if (is_new) {
    units_[unit].rows.push_back(row);
  } else if (known->second != unit) {
    fail<ConfigurationError>("weft: setup: parameter ", table_.rows()[row].name, " is tied to ", name,
                             ", but the first belongs to ", units_[known->second].describe(), " and the second to ",
                             units_[unit].describe(),
                             ": a shard belongs to one unit; let the wrap policy leave both to the unit around them");
  }
}

}  // namespace weft::shard
