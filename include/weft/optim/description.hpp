// optim/description.hpp -- what an optimizer is before it has parameters.
// In: named parameters and the groups a description asks for. Out: an optimizer with torch's parameter groups, or an
// error that names what does not fit.
//
// A description of one's own is any type with
//
//   auto make(std::vector<weft::optim::NamedParameter> const& parameters) const -> std::unique_ptr<SomeOptimizer>;
//
// where SomeOptimizer derives from torch::optim::Optimizer.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <weft/core/error.hpp>

namespace weft::inline v0 {
namespace optim {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

// Whether a parameter belongs to a group.
using When = std::function<bool(std::string_view name, at::Tensor const& parameter)>;

template <class Type>
concept TorchOptimizer = std::derived_from<std::remove_cvref_t<Type>, torch::optim::Optimizer>;

// The optimizer that a description makes.
template <class Description>
using made_by_t = typename decltype(std::declval<Description const&>().make(
    std::declval<std::vector<NamedParameter> const&>()))::element_type;

}  // namespace optim

template <class Type>
concept OptimizerDescription =
    requires(std::remove_cvref_t<Type> const& description, std::vector<optim::NamedParameter> const& parameters) {
      typename optim::made_by_t<std::remove_cvref_t<Type>>;
      requires optim::TorchOptimizer<optim::made_by_t<std::remove_cvref_t<Type>>>;
      { description.make(parameters) } -> std::same_as<std::unique_ptr<optim::made_by_t<std::remove_cvref_t<Type>>>>;
    };

namespace optim {

// The facade asks this of whatever was passed as an optimizer. False after the sentence, so that the caller can stop
// follow-up errors.
template <class Type>
constexpr bool assert_optimizer() {
  constexpr bool fits = OptimizerDescription<Type> || TorchOptimizer<Type>;
  static_assert(fits,
                "weft: setup: pass an optimizer description (weft::AdamW{.lr = ...}) or a torch::optim::Optimizer");
  return fits;
}

// Parameters sorted by the first group that wants them; the rest keep the description's own numbers.
struct Partition {
  std::vector<std::vector<at::Tensor>> by_group;  // as many as groups, in their order; empty where the group skips
  std::vector<at::Tensor> rest;
};

inline std::string group_name(std::string_view optimizer, std::size_t index) {
  return core::message(optimizer, ", groups[", index, "]");
}

template <class Group>
Partition partition(std::string_view optimizer, std::vector<NamedParameter> const& parameters,
                    std::vector<Group> const& groups) {
  if (parameters.empty())
    fail<ConfigurationError>("weft: ", optimizer,
                             ": there are no parameters to optimize: the model has none, or none were passed");
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (!groups[i].when)
      fail<ConfigurationError>("weft: ", group_name(optimizer, i),
                               ": says nothing about its parameters: give it .when = [](std::string_view name, "
                               "at::Tensor const& parameter) { ... }");

  Partition sorted{std::vector<std::vector<at::Tensor>>(groups.size()), {}};
  std::vector<std::size_t> matches(groups.size());
  std::unordered_map<void const*, std::string_view> seen;
  bool all_skipped = true;
  for (auto const& [name, tensor] : parameters) {
    if (!tensor.defined()) fail<ConfigurationError>("weft: ", optimizer, ": parameter ", name, " is undefined");
    if (auto [first, fresh] = seen.emplace(tensor.unsafeGetTensorImpl(), name); !fresh)
      fail<ConfigurationError>("weft: ", optimizer, ": ", first->second, " and ", name,
                               " are one parameter, which would be stepped twice: pass it once");
    std::size_t chosen = 0;
    while (chosen < groups.size() && !groups[chosen].when(name, tensor)) ++chosen;
    if (chosen < groups.size()) ++matches[chosen];
    if (chosen < groups.size() && groups[chosen].skip) continue;
    all_skipped = false;
    (chosen < groups.size() ? sorted.by_group[chosen] : sorted.rest).push_back(tensor);
  }
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (matches[i] == 0)
      fail<ConfigurationError>("weft: ", group_name(optimizer, i), ": .when holds for none of the ", parameters.size(),
                               " parameters that earlier groups left (the first is ", parameters.front().name, ")");
  if (all_skipped)
    fail<ConfigurationError>("weft: ", optimizer, ": every one of the ", parameters.size(),
                             " parameters is in a group with .skip, so nothing would be optimized");
  return sorted;
}

inline void check_at_least_zero(std::string_view where, char const* option, double value) {
  if (!(value >= 0.0))
    fail<ConfigurationError>("weft: ", where, ": .", option, " = ", value, ": give a number of at least 0");
}

// Makes the optimizer that a description describes: its groups in the order written, then what no group wanted.
// options_of(group) gives a group's numbers over the description's, check(where, options) refuses impossible ones.
template <class Made, class Options, class Group, class OptionsOf, class Check, class... Arguments>
std::unique_ptr<Made> make_grouped(std::string_view optimizer, std::vector<NamedParameter> const& parameters,
                                   std::vector<Group> const& groups, Options const& defaults, OptionsOf options_of,
                                   Check check, Arguments const&... arguments) {
  check(std::string(optimizer), defaults);
  Partition sorted = partition(optimizer, parameters, groups);
  std::vector<torch::optim::OptimizerParamGroup> torch_groups;
  std::vector<Options> wanted;
  auto add = [&](std::vector<at::Tensor>& tensors, Options const& options) {
    if (tensors.empty()) return;
    torch_groups.emplace_back(std::move(tensors));
    wanted.push_back(options);
  };
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Options const options = options_of(groups[i]);
    check(group_name(optimizer, i), options);
    add(sorted.by_group[i], options);
  }
  add(sorted.rest, defaults);
  auto made = std::make_unique<Made>(std::move(torch_groups), defaults, arguments...);
  // torch takes an option that equals its constructor's default for one that was not given, and would turn a group's
  // weight_decay = 0 into the optimizer's: say each group's options again. tests/optim/description.cpp
  for (std::size_t i = 0; i < wanted.size(); ++i)
    made->param_groups()[i].set_options(std::make_unique<Options>(wanted[i]));
  return made;
}

}  // namespace optim
}  // namespace weft
