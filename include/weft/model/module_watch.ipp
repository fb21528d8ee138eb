// model/module_watch.ipp -- definitions of model/module_watch.hpp.
#pragma once

#include <weft/model/module_watch.hpp>

#include <string>
#include <unordered_set>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::model {

/// named_parameters() copies names and pointers; what it copies is protected.
struct Registered : torch::nn::Module {
  static auto const& parameters_of(torch::nn::Module const& module) { return module.*(&Registered::parameters_); }
};

/// `see` with each parameter, a module's own before those of its children.
template <class See>
void walk_parameters(torch::nn::Module const& root, See const& see) {
  root.apply([&see](torch::nn::Module const& module) {
    for (auto const& item : Registered::parameters_of(module))
      if (item.value().defined()) see(item.value().unsafeGetTensorImpl());
  });
}

WEFT_INLINE void ModuleWatch::remember(torch::nn::Module const& module) {
  parameters_.clear();
  remembers_ = true;
  walk_parameters(module, [this](at::TensorImpl const* parameter) { parameters_.push_back(parameter); });
}

WEFT_INLINE bool ModuleWatch::is_same(torch::nn::Module const& module) const {
  if (!remembers_) return true;
  std::size_t count = 0;
  bool same = true;
  walk_parameters(module, [&](at::TensorImpl const* parameter) {
    same = same && count < parameters_.size() && parameters_[count] == parameter;
    ++count;
  });
  return same && count == parameters_.size();
}

WEFT_INLINE void ModuleWatch::refuse(torch::nn::Module const& module, ParameterTable const& table, int global_rank) {
  auto const say = [&](std::string const& name, char const* what) {
    fail<Error>(
        "weft: rank ", global_rank, ": parameter ", name, " ", what,
        " since setup, so it would be neither trained nor saved with the rest: change a module before setup, or "
        "let the wrapped model go and set the module up again");
  };
  if (auto const unknown = table.unknown_in(module); !unknown.empty())
    say(unknown, table.find(unknown) ? "was replaced" : "was registered");
  std::unordered_set<at::TensorImpl const*> found;
  walk_parameters(module, [&](at::TensorImpl const* parameter) { found.insert(parameter); });
  for (auto const& row : table.rows())
    if (!found.contains(row.tensor.unsafeGetTensorImpl())) say(row.name, "was removed");
  fail<Error>(
      "weft: rank ", global_rank,
      ": parameters of this module were registered under further names, or in another order, since setup: change "
      "a module before setup, or let the wrapped model go and set the module up again");
}

}  // namespace weft::model
