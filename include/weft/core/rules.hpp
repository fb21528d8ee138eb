// core/rules.hpp -- how rules are written, and how one mistake stays one error.
// In: rules and what they judge. Out: whether all hold, or the message of the first that does not.
//
// A table of rules, here about a type S, most basic rule first. A condition is one expression in parentheses; what
// needs more is a constant above the table.
//
//   #define WEFT_RULE(Name, Condition, Message) WEFT_DETAIL_RULE(Name, S, Condition, Message)
//   WEFT_RULE(TwoStrategies, (S::template num<category::strategy> > 1), "weft: ... write ...");
//   #undef WEFT_RULE
//   struct Rules : core::RuleTable<TwoStrategies, ...> {};
//
// Every rule is asked, so a rule must be able to judge what an earlier one has refused.
#pragma once

#include <cstddef>
#include <string_view>
#include <type_traits>

namespace weft::inline v0::core {

// A rule is a class template: `violated` tells, and the assertion speaks, but only when it is asked to.
#define WEFT_DETAIL_RULE(Name, Subject, Condition, Message) \
  template <class Subject, bool Asserting>                  \
  struct Name {                                             \
    static constexpr bool violated = Condition;             \
    static constexpr char const* message = Message;         \
    static_assert(!(Asserting && violated), Message);       \
  }

// The rule that speaks where none is violated.
struct NoRule {
  static constexpr char const* message = "";
};

template <class... Types>
struct Pick;
template <class First, class... Rest>
struct Pick<First, Rest...> {
  template <std::size_t Place>
  static constexpr auto at() {
    if constexpr (Place == 0)
      return std::type_identity<First>{};
    else
      return Pick<Rest...>::template at<Place - 1>();
  }
};

template <template <class, bool> class... Rules>
struct RuleTable {
  // The place of the first rule that Subject breaks, sizeof...(Rules) if there is none.
  template <class Subject>
  static constexpr std::size_t first_violated = [] {
    std::size_t place = 0;
    static_cast<void>(((Rules<Subject, false>::violated || (++place, false)) || ...));
    return place;
  }();

  template <class Subject>
  static constexpr bool holds = first_violated<Subject> == sizeof...(Rules);

  // Named, not yet instantiated: only the first violated rule ever asserts.
  template <class Subject, bool Asserting>
  using first_rule =
      typename decltype(Pick<Rules<Subject, Asserting>..., NoRule>::template at<first_violated<Subject>>())::type;

  /// What the first violated rule says, as data; empty if all hold.
  template <class Subject>
  static constexpr std::string_view first_message = first_rule<Subject, false>::message;
};

// core::Reported<Violation<Rule>> of a first_rule<Subject, true>: nothing, or one error.
template <class Rule>
struct Violation : Rule {
  static constexpr bool value = true;
};

}  // namespace weft::core
