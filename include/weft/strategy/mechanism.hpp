// strategy/mechanism.hpp -- the only link from a policy to what carries it out.
// In: a policy. Out: Mechanism<Policy>, specialized in the room that does the work, or one sentence that it is missing.
//
// For a strategy S, the room specializes
//
//   template <> struct weft::Mechanism<S> {
//     template <class Derived> class Mixin { friend Derived; /* the Fabric that derives from it calls this */ };
//   };
//
// and weft.hpp, or the user's program, includes that file before Fabric<S> is used.
#pragma once

#include <weft/strategy/composition.hpp>

namespace weft::inline v0 {

template <class Policy>
struct Mechanism {
  static constexpr bool weft_no_mechanism = true;
};

template <class Policy>
inline constexpr bool has_mechanism_v = !requires { Mechanism<Policy>::weft_no_mechanism; };

namespace strategy {

// Declared by weft itself, so that its absence is ours to build and not the user's to write.
template <class Policy>
inline constexpr bool is_ours_v = core::type_name<Policy>().starts_with("weft::");

// One sentence for each kind of policy that parses before it works.
template <class Policy>
struct MissingMechanism {
  static constexpr bool is_strategy = is_of_v<Policy, category::strategy>;
  static constexpr bool is_precision = is_of_v<Policy, category::precision>;
  static constexpr bool is_data_parallel = std::is_same_v<Policy, DataParallel>;
  static constexpr bool is_plain = !is_fsdp_v<Policy> && !is_zero_v<Policy> && !is_model_parallel_v<Policy> &&
                                   !is_data_parallel;

  static constexpr bool value = true;

  static_assert(!is_fsdp_v<Policy>,
                "weft: FSDP<...> needs its mechanism: include <weft/shard/fsdp.hpp> or <weft/weft.hpp>");
  static_assert(!is_data_parallel,
                "weft: DataParallel needs its mechanism: include <weft/data_parallel/data_parallel.hpp>");
  static_assert(!is_zero_v<Policy>,
                "weft: ZeRO<...> parses, but its mechanism is not built yet: use DDP<> or SingleDevice until it lands");
  static_assert(!is_model_parallel_v<Policy>,
                "weft: ModelParallel<...> parses, but its mechanism is not built yet: use DDP<> or SingleDevice until "
                "it lands");
  static_assert(!(is_strategy && is_plain && is_ours_v<Policy>),
                "weft: this strategy parses, but its mechanism is not built yet: use DDP<> or SingleDevice until it "
                "lands");
  static_assert(!(is_strategy && !is_ours_v<Policy>),
                "weft: strategy X has no Mechanism<X>: specialize weft::Mechanism<X>, with a template <class Derived> "
                "class Mixin, and include it before use");
  static_assert(!is_precision,
                "weft: a precision needs its mechanism: include <weft/precision/rules.hpp> or <weft/weft.hpp>");
  static_assert(is_strategy || is_precision || !is_ours_v<Policy>,
                "weft: this policy parses, but its mechanism is not built yet: leave it out until it lands");
  static_assert(is_strategy || is_precision || is_ours_v<Policy>,
                "weft: policy X has no Mechanism<X>: specialize weft::Mechanism<X> and include it before use");
};

}  // namespace strategy

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
