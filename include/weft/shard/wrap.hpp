// shard/wrap.hpp -- a model's units of sharding.
// In: a model, its parameters, and what the wrap and ignore policies say. Out: the units with their parameters, or an
// error that names what matches nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <weft/core/type_list.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/strategy/wrap.hpp>
#include <weft/unit/blocks.hpp>
#include <weft/unit/hooks.hpp>
#include <weft/unit/names.hpp>

namespace weft::inline v0::shard {

/// What policies ask for, without their types.
struct Wrapping {
  struct Rule {
    std::string text;  // "WrapPolicy<TransformerBlock>"
    std::function<bool(torch::nn::Module&, std::string const& path)> matches;
  };
  std::vector<Rule> rules;
  std::optional<int64_t> min_params;  // SizeBased
  std::function<bool(torch::nn::Module&)> ignores_module = [](torch::nn::Module&) { return false; };
  std::function<bool(std::string const&, at::Tensor const&)> ignores_parameter =
      [](std::string const&, at::Tensor const&) { return false; };
};

/// One unit of sharding. The first of a model is the root, with all that no other has.
struct WrappedUnit {
  std::string path;
  unit::UnitBase* unit = nullptr;  // null: the root, which the wrapped model stands for
  int parent = -1;
  std::vector<std::size_t> rows{};  // of the parameter table
  std::optional<std::size_t>
      before_inner{};  // how many of them are registered before the units inside, if there are some

  std::string describe() const {
    if (!unit) return "the root";
    return path + " (" + unit->unit_type() + ")";
  }
};

namespace detail {

template <class Block>
constexpr bool check_block() {
  static_assert(unit::is_module_block_v<Block>,
                "weft: WrapPolicy<Block>: Block is no module: write a module holder, or the class it holds");
  static_assert(!unit::is_module_block_v<Block> || unit::is_unit_block_v<Block>,
                "weft: WrapPolicy<Block>: Block is not a unit: declare it with WEFT_MODULE(Block) instead of "
                "TORCH_MODULE(Block), or take the layer "
                "of weft::nn");
  return true;
}

template <class... Blocks>
void add_rules(Wrapping& wrapping, std::type_identity<WrapPolicy<Blocks...>>) {
  static_assert((check_block<Blocks>() && ...));
  (wrapping.rules.push_back({"WrapPolicy<" + std::string(core::type_name<Blocks>()) + ">",
                             [](torch::nn::Module& m, std::string const&) { return unit::is_block<Blocks>(m); }}),
   ...);
}
template <std::size_t MinParams>
void add_rules(Wrapping& wrapping, std::type_identity<SizeBased<MinParams>>) {
  wrapping.min_params = std::min(wrapping.min_params.value_or(INT64_MAX), static_cast<int64_t>(MinParams));
}
template <auto Function>
void add_rules(Wrapping& wrapping, std::type_identity<WrapIf<Function>>) {
  constexpr bool fits = std::is_invocable_r_v<bool, decltype(Function), torch::nn::Module&, std::string const&>;
  static_assert(fits,
                "weft: WrapIf<function>: write bool function(torch::nn::Module& module, std::string const& path)");
  if constexpr (fits)
    wrapping.rules.push_back({"WrapIf<...>", [](torch::nn::Module& m, std::string const& path) {
                                return static_cast<bool>(Function(m, path));
                              }});
}
template <class... Blocks>
void add_rules(Wrapping& wrapping, std::type_identity<Ignore<Blocks...>>) {
  wrapping.ignores_module = [before = std::move(wrapping.ignores_module)](torch::nn::Module& m) {
    return before(m) || (unit::is_block<Blocks>(m) || ...);
  };
}
template <auto Function>
void add_rules(Wrapping& wrapping, std::type_identity<IgnoreIf<Function>>) {
  constexpr bool fits = std::is_invocable_r_v<bool, decltype(Function), std::string const&, at::Tensor const&>;
  static_assert(fits,
                "weft: IgnoreIf<function>: write bool function(std::string const& name, at::Tensor const& parameter)");
  if constexpr (fits)
    wrapping.ignores_parameter = [before = std::move(wrapping.ignores_parameter)](std::string const& name,
                                                                                  at::Tensor const& tensor) {
      return before(name, tensor) || Function(name, tensor);
    };
}

}  // namespace detail

template <class... Policies>
Wrapping wrapping_of(core::TypeList<Policies...>) {
  Wrapping wrapping;
  (detail::add_rules(wrapping, std::type_identity<Policies>{}), ...);
  return wrapping;
}

/// What a strategy says about units; nothing, for one that has none.
template <class S>
Wrapping wrapping_of_strategy() {
  if constexpr (requires {
                  typename S::wrap;
                  typename S::ignore;
                })
    return wrapping_of(core::concat_t<typename S::wrap, typename S::ignore>{});
  else if constexpr (requires { typename S::wrap; })
    return wrapping_of(typename S::wrap{});
  else
    return {};
}

/// Walks a model once for each question.
class Wrapper {
 public:
  Wrapper(torch::nn::Module& root, model::ParameterTable const& table, Wrapping const& wrapping)
      : root_(root), table_(table), wrapping_(wrapping) {}

  std::vector<WrappedUnit> units();

 private:
  void choose(torch::nn::Module& module, std::string const& path, std::string const& rule);

  /// Inner modules first; returns what is left of the module's parameters for the unit around it.
  int64_t choose_by_size(torch::nn::Module& module, std::string const& path);

  void collect(torch::nn::Module& module, std::string const& path, std::size_t unit, bool ignored);

  void add(std::string const& name, at::Tensor const& tensor, std::size_t unit, bool ignored);

  torch::nn::Module& root_;
  model::ParameterTable const& table_;
  Wrapping const& wrapping_;
  std::unordered_set<torch::nn::Module*> chosen_;
  std::unordered_set<torch::nn::Module*> collected_;
  std::unordered_map<std::size_t, std::size_t> owner_of_;
  std::vector<WrappedUnit> units_;
};

}  // namespace weft::shard

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/shard/wrap.ipp>
#endif
