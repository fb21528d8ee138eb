// A strategy and a precision of one's own: each member that is missing is asked for.
#include <weft/strategy/composition.hpp>
#include <weft/strategy/mechanism.hpp>

using namespace weft;

struct LocalSgdConfig {
  int every = 8;
  bool operator==(LocalSgdConfig const&) const = default;
};
struct LocalSgd {
  using category = weft::category::strategy;
  static constexpr std::string_view name = "LocalSgd";
  static constexpr LocalSgdConfig config{.every = 16};
};
struct LocalSgdWithMechanism : LocalSgd {};
template <>
struct weft::Mechanism<LocalSgdWithMechanism> {
  template <class Derived>
  class Mixin {};
};
struct Odd {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Odd";
  static constexpr PrecisionConfig config{.computed = Number::bf16};
};
template <class... Policies>
struct Check {
  static_assert(Composition<Policies...>::check());
};

#if defined(CASE_no_category)  // expect-error: as in using category = weft::category::strategy
struct NoCategory {
  static constexpr std::string_view name = "NoCategory";
  static constexpr LocalSgdConfig config{};
};
template struct Check<NoCategory>;
#elif defined(CASE_no_name)  // expect-error: weft: a strategy has a name: write static constexpr std::string_view name
struct NoName {
  using category = weft::category::strategy;
  static constexpr LocalSgdConfig config{};
};
template struct Check<NoName>;
#elif defined(CASE_no_plan)  // expect-error: weft: a strategy has one constexpr value that compares
struct Planless {
  using category = weft::category::strategy;
  static constexpr std::string_view name = "Planless";
};
template struct Check<Planless>;
#elif defined(CASE_plan_that_does_not_compare)  // expect-error: weft: a strategy has one constexpr value that compares
struct IncomparablePlan {
  int every = 8;
};
struct Incomparable {
  using category = weft::category::strategy;
  static constexpr std::string_view name = "Incomparable";
  static constexpr IncomparablePlan config{};
};
template struct Check<Incomparable>;
#elif defined(CASE_plan_known_too_late)         // expect-error: weft: a strategy has one constexpr value that compares
struct Late {
  using category = weft::category::strategy;
  static constexpr std::string_view name = "Late";
  static LocalSgdConfig config;
};
template struct Check<Late>;
#elif defined(CASE_precision_without_plan)      // expect-error: weft: a precision has a name and a value
struct Planless {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Planless";
};
template struct Check<Planless>;
#elif defined(CASE_precision_without_name)      // expect-error: weft: a precision has a name and a value
struct Nameless {
  using category = weft::category::precision;
  static constexpr PrecisionConfig config{};
};
template struct Check<DDP<>, Nameless>;
#elif defined(CASE_no_mechanism)  // expect-error: weft: strategy X has no Mechanism<X>: specialize weft::Mechanism<X>
static_assert(assert_mechanism<LocalSgd>());
#elif defined(CASE_precision_without_category)   // expect-error: and give a policy of your own its category
struct NoKind {
  static constexpr std::string_view name = "NoKind";
  static constexpr PrecisionConfig config{};
};
template struct Check<NoKind>;
#elif defined(CASE_precision_with_another_plan)  // expect-error: weft: a precision has a name and a value
struct OtherPlan {
  using category = weft::category::precision;
  static constexpr std::string_view name = "OtherPlan";
  static constexpr LocalSgdConfig config{};
};
template struct Check<OtherPlan>;
#else                                            // control
template struct Check<LocalSgd>;
template struct Check<LocalSgd, Bf16, Gloo, Fork, Mesh<Axis<"data_parallel", 2>>>;
template struct Check<LocalSgd, Odd>;
static_assert(Strategy<LocalSgd>);
static_assert(Precision<Odd>);
static_assert(assert_mechanism<LocalSgdWithMechanism>());
#endif
