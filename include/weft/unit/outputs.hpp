// unit/outputs.hpp -- the tensors that go into a unit and come out of it.
// In: arguments and a result of any visitable type. Out: pointers to the tensors inside, for hooks to look at and to
// replace.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include <weft/activation/activations.hpp>
#include <weft/core/error.hpp>
#include <weft/core/visit.hpp>
#include <weft/unit/backward_hook.hpp>
#include <weft/unit/hooks.hpp>

namespace weft::inline v0::unit {

// What forward may return: one can look inside, and replace what is there.
template <class Result>
inline constexpr bool is_unit_output_v = !std::is_void_v<Result> && !std::is_reference_v<Result> &&
                                         !std::is_pointer_v<Result> && is_visitable_v<at::Tensor, Result>;

namespace detail {

struct Finder {
  Tensors found;
  bool met_const = false;  // behind a const pointer or in an ArrayRef: can't be replaced

  void operator()(at::Tensor& tensor) { found.push_back(&tensor); }
  void operator()(at::Tensor const&) { met_const = true; }
};

template <class T>
Tensors tensors_in(T& value, Site const& site) {
  Finder finder;
  for_each_leaf<at::Tensor>(value, finder);
  if (finder.met_const)
    fail<ConfigurationError>(
        "weft: unit ", site.describe(),
        " returns a tensor that cannot be replaced (const, or in an ArrayRef): hooks need to; return it by value");
  return std::move(finder.found);
}

// One argument on its way to a parameter of forward. Where it can be, it is a copy (of handles), so that replacing a
// tensor doesn't reach into the caller's variables.
template <class Parameter, class Argument>
class Passed {
  using Value = std::remove_cvref_t<Parameter>;
  static constexpr bool is_in_out = std::is_lvalue_reference_v<Parameter> &&
                                    !std::is_const_v<std::remove_reference_t<Parameter>>;
  static constexpr bool is_open = is_visitable_v<at::Tensor, Value>;
  static constexpr bool is_held = is_open && !is_in_out && !std::is_polymorphic_v<Value> && !std::is_array_v<Value> &&
                                  std::is_constructible_v<Value, Argument&&>;

 public:
  explicit Passed(Argument&& argument) : value_(std::forward<Argument>(argument)) {}

  void find(Finder& finder, bool& all_open) {
    if constexpr (is_held || (is_open && is_in_out))
      for_each_leaf<at::Tensor>(value_, finder);
    else
      all_open = false;
  }
  decltype(auto) pass() {
    if constexpr (is_held)
      return static_cast<Parameter&&>(value_);
    else
      return std::forward<Argument>(value_);
  }

 private:
  std::conditional_t<is_held, Value, Argument&&> value_;
};

template <class T>
void add_storages(Storages& storages, T const& value) {
  if constexpr (is_visitable_v<at::Tensor, T>)
    for_each_leaf<at::Tensor>(value, [&](at::Tensor const& tensor) { add_storage(storages, tensor); });
}

// Without inputs: arguments go straight through.
template <class Result, class Base, class... Arguments>
Result run_hooked(std::shared_ptr<Chain> const& chain, Base const& base, Arguments&&... arguments) {
  Storages outside;
  if (chain->wants_pre_backward()) (add_storages(outside, arguments), ...);
  HookedForward passage(chain);
  passage.enter({});
  Result result = activation::detail::run_body<Result>(chain->activations(), base,
                                                       std::forward<Arguments>(arguments)...);
  passage.leave(tensors_in(result, chain->site()), outside);
  return result;
}

template <class Result, class... Parameters, class Base, std::size_t... I, class... Arguments>
Result run_hooked_with_inputs(std::shared_ptr<Chain> const& chain, std::index_sequence<I...>, Base const& base,
                              Arguments&&... arguments) {
  [[maybe_unused]] std::tuple<Passed<std::tuple_element_t<I, std::tuple<Parameters...>>, Arguments>...> passed(
      std::forward<Arguments>(arguments)...);
  Finder inputs;
  bool all_open = true;
  (std::get<I>(passed).find(inputs, all_open), ...);
  if (!all_open || inputs.met_const)
    fail<ConfigurationError>(
        "weft: unit ", chain->site().describe(),
        " takes an argument that hooks cannot look into or replace tensors in, and one of ",
        "its hooks needs its inputs: take a tensor, a container of tensors, or a struct with weft_visit(T&, f)");
  Storages outside;
  if (chain->wants_pre_backward())
    for (auto const* input : inputs.found) add_storage(outside, *input);
  HookedForward passage(chain);
  passage.enter(inputs.found);
  Result result = activation::detail::run_body<Result>(chain->activations(), base, std::get<I>(passed).pass()...);
  passage.leave(tensors_in(result, chain->site()), outside);
  return result;
}

}  // namespace detail
}  // namespace weft::unit
