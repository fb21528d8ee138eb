// strategy/mechanism.hpp -- the only link from a policy to what carries it out.
// In: a policy. Out: Mechanism<Policy>, specialized in the room that does the work, or one sentence that it is missing.
//
// The mechanism of a strategy says what it does by declared members, whose defaults are in MechanismDefaults, and is
// carried out by a mixin of the Fabric. The least that one is:
//
//   template <> struct weft::Mechanism<Mine> : weft::MechanismDefaults {
//     template <class Derived> class Mixin {
//      protected:
//       friend Derived;
//       std::shared_ptr<model::Engine> make_engine(torch::nn::Module& module, model::ParameterTable& table,
//                                                  MechanismContext const& context) {
//         return std::make_shared<MyEngine>(table, context.ranks());  // a model::Engine, model/engine.hpp
//       }
//     };
//   };
//
// make_engine() is called by all ranks, once for each model, when the model is equal everywhere (model/setup.hpp). Its
// ranks are those of the context, comm/mechanism_context.hpp. What it divides it says in the table's placements.
//
// A strategy around another one names it as `inner`, and its mixin derives from the inner one's (in namespace weft):
//
//   template <class Inner> struct Mechanism<Around<Inner>> : MechanismAround<Inner, "mine"> {
//     template <class Derived> class Mixin : public Mechanism<Inner>::template Mixin<Derived> {
//      protected:
//       friend Derived;
//       std::shared_ptr<model::Engine> make_engine(... module, ... table, MechanismContext const& context) {
//         auto mine = std::make_shared<MyEngine>(...);                 // cut first: model/cut.hpp
//         auto inner = Mechanism<Inner>::template Mixin<Derived>::make_engine(module, table, context.without("mine"));
//         mine->attach(...);                                           // hooks after the inner one's, so that they lie
//         return model::stacked(mine, inner);                          // inside: model/engine_stack.hpp
//       }
//     };
//   };
#pragma once

#include <array>
#include <string_view>

#include <weft/strategy/composition.hpp>

namespace weft::inline v0 {

template <class M>
class Model;

template <class Policy>
struct Mechanism {
  static constexpr bool weft_no_mechanism = true;
};

template <class Policy>
inline constexpr bool has_mechanism_v = !requires { Mechanism<Policy>::weft_no_mechanism; };

/// What a mechanism says about itself, unless it says otherwise.
struct MechanismDefaults {
  /// It takes parameters that have no memory yet, each when it gets its values: its engine has a take().
  static constexpr bool initializes = false;
  /// It brings such parameters into the dtype that the table says.
  static constexpr bool converts = false;
  /// Its ranks may have unequal numbers of batches (fabric.join): its engine is a data_parallel::JoinableEngine.
  static constexpr bool joins = false;
  /// After backward, ranks along an axis on which a parameter lies undivided have the same gradient of it.
  static constexpr bool equal_gradients = false;
  /// Axes of the mesh whose ranks work on one batch together.
  static constexpr std::array<std::string_view, 0> same_batch{};
  /// What setup returns for a module of type M.
  template <class M>
  using Wrapped = Model<M>;
};

namespace strategy {

template <std::size_t N, std::size_t M>
constexpr std::array<std::string_view, N + M> joined(std::array<std::string_view, N> const& a,
                                                     std::array<std::string_view, M> const& b) {
  std::array<std::string_view, N + M> all{};
  for (std::size_t i = 0; i < N + M; ++i) all[i] = i < N ? a[i] : b[i - N];
  return all;
}

// Ours, and written down before there is a mechanism: the strategy says so.
template <class S>
inline constexpr bool is_built_v = !requires { requires !S::is_built; };

// One sentence for each kind of policy that parses before it works.
template <class Policy>
struct MissingMechanism {
  static constexpr bool is_strategy = is_of_v<Policy, category::strategy>;
  static constexpr bool is_precision = is_of_v<Policy, category::precision>;
  static constexpr bool is_ddp = is_ddp_v<Policy>, is_fsdp = is_fsdp_v<Policy>,
                        is_data_parallel = topology_of<Policy>().devices;
  static constexpr bool is_unbuilt = is_strategy && !is_built_v<Policy>;
  static constexpr bool is_users = is_strategy && !is_unbuilt && !is_ddp && !is_fsdp && !is_data_parallel;

  static constexpr bool value = true;

  static_assert(!is_fsdp, "weft: FSDP<...> needs its mechanism: include <weft/shard/fsdp.hpp> or <weft/weft.hpp>");
  static_assert(!is_ddp, "weft: DDP<...> needs its mechanism: include <weft/data_parallel/ddp.hpp> or <weft/weft.hpp>");
  static_assert(!is_data_parallel,
                "weft: DataParallel needs its mechanism: include <weft/data_parallel/data_parallel.hpp>");
  static_assert(!(is_unbuilt && is_zero_v<Policy>),
                "weft: ZeRO<...> parses, but its mechanism is not built yet: use DDP<> or SingleDevice until it lands");
  static_assert(!(is_unbuilt && is_model_parallel_v<Policy>),
                "weft: ModelParallel<...> parses, but its mechanism is not built yet: use DDP<> or SingleDevice until "
                "it lands");
  static_assert(!is_unbuilt || is_zero_v<Policy> || is_model_parallel_v<Policy>,
                "weft: this strategy parses, but its mechanism is not built yet: use DDP<> or SingleDevice until it "
                "lands");
  static_assert(!is_users,
                "weft: strategy X has no Mechanism<X>: specialize weft::Mechanism<X>, with a template <class Derived> "
                "class Mixin, and include it before use");
  static_assert(!is_precision,
                "weft: a precision needs its mechanism: include <weft/precision/rules.hpp> or <weft/weft.hpp>");
  static_assert(is_strategy || is_precision,
                "weft: policy X has no Mechanism<X>: specialize weft::Mechanism<X> and include it before use");
};

}  // namespace strategy

/// Of a mechanism around another one: what that says, but that ranks don't join; with the axes of its own whose ranks
/// work on one batch together.
template <class Inner, core::FixedString... SameBatch>
struct MechanismAround : MechanismDefaults {
  static constexpr bool initializes = Mechanism<Inner>::initializes;
  static constexpr bool converts = Mechanism<Inner>::converts;
  static constexpr bool equal_gradients = Mechanism<Inner>::equal_gradients;
  static constexpr auto same_batch = strategy::joined(
      std::array<std::string_view, sizeof...(SameBatch)>{SameBatch.view()...}, Mechanism<Inner>::same_batch);
  template <class M>
  using Wrapped = typename Mechanism<Inner>::template Wrapped<M>;
};

// static_assert(assert_mechanism<S>()): nothing, or exactly one error; mechanism_or_t<S, Other> is then Other.
template <class Policy>
consteval bool assert_mechanism() {
  if constexpr (has_mechanism_v<Policy>)
    return true;
  else
    return core::Reported<strategy::MissingMechanism<Policy>>;
}

template <class Policy, class Other>
using mechanism_or_t = std::conditional_t<has_mechanism_v<Policy>, Policy, Other>;

}  // namespace weft
