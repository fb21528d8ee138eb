// unit/unit.hpp -- where a module's forward is intercepted.
// In: a module BlockImpl, unchanged. Out: WEFT_MODULE(Block), a holder whose calls run the unit's hooks around
// BlockImpl::forward.
//
// [Note: past the hooks] LibTorch's forward isn't virtual, so who calls it by the base's type gets the base:
//   block(x), block->forward(x), block.ptr()->forward(x)      entered
//   Sequential, AnyModule, ModuleList: as<Block>()            entered
//   module->as<BlockImpl>()->forward(x), a BlockImpl&         the base: no hooks
//   this->forward(x) inside of BlockImpl                      the base: no hooks (the call that brought us here has run
//   them, or write
//                                                             call<&BlockImpl::method> at the root)
//   sequential->at<BlockImpl>(0)                              throws: it holds a unit; write at<Block::Impl>(0)
//   LibTorch's own composites around a unit                   refused at setup, by check_reachable
// A forward that BlockImpl declares virtual is entered on every path. One that is noexcept stays so: a hook that throws
// below block->forward(x) ends the program, below block(x) it doesn't. tests/unit/unit.cpp
#pragma once

#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <weft/unit/clone.hpp>
#include <weft/unit/hooks.hpp>
#include <weft/unit/names.hpp>
#include <weft/unit/outputs.hpp>

namespace weft::inline v0 {
namespace unit::detail {

// Stand in for a forward's type where there is none.
struct Incomplete {};
struct NotAModule {};
struct FinalModule {};
struct NotOneForward {};

template <class Impl>
auto forward_of() {
  if constexpr (!requires { sizeof(Impl); })
    return std::type_identity<Incomplete>{};
  else if constexpr (!std::is_base_of_v<torch::nn::Module, Impl>)
    return std::type_identity<NotAModule>{};
  else if constexpr (std::is_final_v<Impl>)
    return std::type_identity<FinalModule>{};
  else if constexpr (requires { &Impl::forward; })
    return std::type_identity<decltype(&Impl::forward)>{};
  else
    return std::type_identity<NotOneForward>{};
}
template <class Impl>
using ForwardOf = typename decltype(forward_of<Impl>())::type;

template <class Object, class... Arguments>
concept ForwardTakes = requires { std::declval<Object&>().forward(std::declval<Arguments>()...); };

// All of a unit but its forward.
template <class Impl, class Self>
class UnitCore : public InClonedParent<Impl>, public UnitBase {
 public:
  using InClonedParent<Impl>::InClonedParent;
  UnitCore() = default;

  torch::nn::Module& unit_module() noexcept final { return *this; }
  std::string unit_type() const final { return shown_name(implementation_name<Impl>()); }

  std::shared_ptr<torch::nn::Module> clone(CloneDevice const& device = std::nullopt) const override {
    return clone_unit<Self, Impl>(*this, device);
  }
  void pretty_print(std::ostream& stream) const override {
    if constexpr (prints_itself<Impl>())
      Impl::pretty_print(stream);
    else
      stream << (this->name() == implementation_name<Impl>() ? this->unit_type() : this->name());
  }

 private:
  static bool set_name(torch::nn::Module& module) {
    torch::nn::Cloneable<NameDoor>::name_if_unnamed(module, implementation_name<Impl>());
    return true;
  }
  bool unit_is_named_ = set_name(*this);  // in every constructor that is inherited
};

}  // namespace unit::detail

// BlockImpl with a forward of exactly the same type that runs the unit's hooks around it. This is what a Block holds;
// Block::Impl names it. The primary is what a refused module gets, so that the assertion in Holder is the only error.
template <class Impl, class Forward = unit::detail::ForwardOf<Impl>>
class Unit : public torch::nn::Module {
 public:
  template <class... Arguments>
  explicit Unit(Arguments&&...) {}
  template <class... Arguments>
  at::Tensor unit_call(Arguments&&...) {
    return {};
  }
};

// forward has the type that AnyModule deduces from; default arguments aren't part of a type, so the holder calls
// unit_call, which leaves it to Impl::forward to fill them in.
#define WEFT_DETAIL_UNIT(QUALIFIERS, NOEXCEPT)                                                                         \
  template <class Impl, class Owner, class Result, class... Parameters>                                                \
  class Unit<Impl, Result (Owner::*)(Parameters...) QUALIFIERS NOEXCEPT> final                                         \
      : public unit::detail::UnitCore<Impl, Unit<Impl, Result (Owner::*)(Parameters...) QUALIFIERS NOEXCEPT>> {        \
    using Core = unit::detail::UnitCore<Impl, Unit>;                                                                   \
                                                                                                                       \
   public:                                                                                                             \
    using Core::Core;                                                                                                  \
    Unit() = default;                                                                                                  \
    explicit Unit(Impl const& original) : Core(original) {}                                                            \
                                                                                                                       \
    Result forward(Parameters... parameters) QUALIFIERS NOEXCEPT {                                                     \
      return unit_call(std::forward<Parameters>(parameters)...);                                                       \
    }                                                                                                                  \
                                                                                                                       \
    template <class... Arguments>                                                                                      \
      requires unit::detail::ForwardTakes<Impl QUALIFIERS, Arguments...>                                               \
    Result unit_call(Arguments&&... arguments) QUALIFIERS {                                                            \
      if (!this->unit_in_use()) [[likely]]                                                                             \
        return Impl::forward(std::forward<Arguments>(arguments)...);                                                   \
      if constexpr (unit::is_unit_output_v<Result>) {                                                                  \
        auto const base = [this](auto&&... passed)                                                                     \
                              NOEXCEPT -> Result { return Impl::forward(std::forward<decltype(passed)>(passed)...); }; \
        auto const chain = this->unit_enter();                                                                         \
        if (chain && chain->wants_inputs())                                                                            \
          return unit::detail::run_hooked_with_inputs<Result, Parameters...>(                                          \
              chain, std::index_sequence_for<Arguments...>{}, base, std::forward<Arguments>(arguments)...);            \
        if (chain) return unit::detail::run_hooked<Result>(chain, base, std::forward<Arguments>(arguments)...);        \
      }                                                                                                                \
      return Impl::forward(std::forward<Arguments>(arguments)...);                                                     \
    }                                                                                                                  \
  };

WEFT_DETAIL_UNIT(, )
WEFT_DETAIL_UNIT(const, )
WEFT_DETAIL_UNIT(&, )
WEFT_DETAIL_UNIT(const&, )
WEFT_DETAIL_UNIT(, noexcept)
WEFT_DETAIL_UNIT(const, noexcept)
WEFT_DETAIL_UNIT(&, noexcept)
WEFT_DETAIL_UNIT(const&, noexcept)
#undef WEFT_DETAIL_UNIT

namespace unit {
namespace detail {

template <class Forward>
struct ResultOf {
  using type = at::Tensor;
  static constexpr bool is_known = false;
};
#define WEFT_DETAIL_RESULT(QUALIFIERS)                           \
  template <class Owner, class Result, class... Parameters>      \
  struct ResultOf<Result (Owner::*)(Parameters...) QUALIFIERS> { \
    using type = Result;                                         \
    static constexpr bool is_known = true;                       \
  };
WEFT_DETAIL_RESULT()
WEFT_DETAIL_RESULT(const)
WEFT_DETAIL_RESULT(&)
WEFT_DETAIL_RESULT(const&)
WEFT_DETAIL_RESULT(noexcept)
WEFT_DETAIL_RESULT(const noexcept)
WEFT_DETAIL_RESULT(& noexcept)
WEFT_DETAIL_RESULT(const& noexcept)
#undef WEFT_DETAIL_RESULT

// Beside Holder, not in it: clang drops the members of a class whose assertion fails, and that would be more errors.
template <class Implementation>
struct CheckedModule {
  using Forward = ForwardOf<Implementation>;
  static constexpr bool is_complete = !std::is_same_v<Forward, Incomplete>;
  static constexpr bool is_module = !std::is_same_v<Forward, NotAModule>;
  static constexpr bool is_open = !std::is_same_v<Forward, FinalModule>;
  static constexpr bool is_one = !std::is_same_v<Forward, NotOneForward>;
  static_assert(is_complete,
                "weft: WEFT_MODULE(Block): write it after the definition of BlockImpl, not after its declaration");
  static_assert(is_module, "weft: WEFT_MODULE(Block): BlockImpl must derive from torch::nn::Module");
  static_assert(is_open, "weft: WEFT_MODULE(Block): BlockImpl is final, and a unit derives from it: remove final");
  static_assert(is_one,
                "weft: WEFT_MODULE(Block): BlockImpl needs exactly one public forward that is no template: give "
                "overloads other names "
                "(model.call<&M::name>(...) calls them), and keep TORCH_MODULE for containers like Sequential");
  static_assert(
      ResultOf<Forward>::is_known || !(is_complete && is_module && is_open && is_one),
      "weft: WEFT_MODULE(Block): forward may be const, & and noexcept, but not volatile, && or variadic like printf");
  static_assert(is_unit_output_v<typename ResultOf<Forward>::type>,
                "weft: WEFT_MODULE(Block): forward must return by value a tensor, a container or tuple of tensors, or "
                "a struct with "
                "weft_visit(T&, f) declared before WEFT_MODULE: hooks of backward sit on the outputs");
};

}  // namespace detail

// What WEFT_MODULE derives from: torch::nn::ModuleHolder around the unit, with a call that keeps default arguments. A
// plain alias of it is a holder as well, and costs nothing until it is used: weft::nn::Linear.
template <class Implementation>
class Holder : public torch::nn::ModuleHolder<Unit<Implementation>> {
  static_assert(sizeof(detail::CheckedModule<Implementation>) > 0);

 public:
  using Impl = Unit<Implementation>;
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;

  template <class... Arguments>
  auto operator()(Arguments&&... arguments)
      -> decltype(std::declval<Impl&>().unit_call(std::forward<Arguments>(arguments)...)) {
    return this->get()->unit_call(std::forward<Arguments>(arguments)...);
  }
};

}  // namespace unit
}  // namespace weft

// Declares Name, a holder like TORCH_MODULE's, whose calls can be intercepted. After the definition of Implementation.
#define WEFT_MODULE_IMPL(Name, Implementation)                            \
  class Name : public ::weft::unit::Holder<Implementation> { /* NOLINT */ \
   public:                                                                \
    using ::weft::unit::Holder<Implementation>::Holder;                   \
  }

#define WEFT_MODULE(Name) WEFT_MODULE_IMPL(Name, Name##Impl)
