// strategy/rules.hpp -- how a rule of composition is written, and how one mistake stays one error.
// In: rules and what they judge. Out: whether all hold, or the sentence of the first that does not.
//
// A rule is a class template: `violated` tells, and the assertion speaks, but only when it is asked to.
//
//   template <class Subject, bool Asserting>
//   struct TwoStrategies {
//     static constexpr bool violated = Subject::template num<category::strategy> > 1;
//     static_assert(!(Asserting && violated), "weft: ... write ...");
//   };
//
// Every rule is asked, so a rule must be able to judge what an earlier one has refused.
#pragma once

#include <cstddef>
#include <type_traits>

namespace weft::inline v0::strategy {

struct NoMessage {};

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
  template <class Subject>
  using message =
      typename decltype(Pick<Rules<Subject, true>..., NoMessage>::template at<first_violated<Subject>>())::type;
};

// core::Reported<Violation<Book, Subject>>: nothing, or one error.
template <class Book, class Subject>
struct Violation : Book::template message<Subject> {
  static constexpr bool value = true;
};

}  // namespace weft::strategy
