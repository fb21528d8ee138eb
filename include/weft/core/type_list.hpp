// core/type_list.hpp -- packs of types as values.
// In: types. Out: TypeList and the few questions weft asks of one: count, filter, first, concatenation, union.
#pragma once

#include <cstddef>
#include <type_traits>

namespace weft::inline v0::core {

template <class... Types>
struct TypeList {
  static constexpr std::size_t size = sizeof...(Types);

  template <class T>
  static constexpr bool contains = (std::is_same_v<T, Types> || ...);

  template <template <class> class Predicate>
  static constexpr std::size_t count = (std::size_t{0} + ... + std::size_t{Predicate<Types>::value});

  template <template <class...> class Template>
  using into = Template<Types...>;

  // Calls f(std::type_identity<T>{}) for each type, in order.
  template <class F>
  static constexpr void for_each(F&& f) {
    (static_cast<void>(f(std::type_identity<Types>{})), ...);
  }
};

template <class T>
inline constexpr bool is_type_list_v = false;
template <class... Types>
inline constexpr bool is_type_list_v<TypeList<Types...>> = true;

// concat_t<TypeList<A>, TypeList<B, C>> is TypeList<A, B, C>.
template <class... Lists>
struct Concat {
  using type = TypeList<>;
};
template <class... Types>
struct Concat<TypeList<Types...>> {
  using type = TypeList<Types...>;
};
template <class... Left, class... Right, class... Lists>
struct Concat<TypeList<Left...>, TypeList<Right...>, Lists...> : Concat<TypeList<Left..., Right...>, Lists...> {};
template <class... Lists>
using concat_t = typename Concat<Lists...>::type;

// filter_t<Predicate, List>: the types for which Predicate<T>::value holds, in order.
template <template <class> class Predicate, class List>
struct Filter;
template <template <class> class Predicate, class... Types>
struct Filter<Predicate, TypeList<Types...>> {
  using type = concat_t<std::conditional_t<Predicate<Types>::value, TypeList<Types>, TypeList<>>...>;
};
template <template <class> class Predicate, class List>
using filter_t = typename Filter<Predicate, List>::type;

// first_or_t<List, Default>: the first type, or Default for an empty list.
template <class List, class Default>
struct FirstOr {
  using type = Default;
};
template <class First, class... Rest, class Default>
struct FirstOr<TypeList<First, Rest...>, Default> {
  using type = First;
};
template <class List, class Default>
using first_or_t = typename FirstOr<List, Default>::type;

// unique_t<List>: each type once, where it came first.
template <class Seen, class List>
struct Unique {
  using type = Seen;
};
template <class... Seen, class First, class... Rest>
struct Unique<TypeList<Seen...>, TypeList<First, Rest...>>
    : Unique<
          std::conditional_t<TypeList<Seen...>::template contains<First>, TypeList<Seen...>, TypeList<Seen..., First>>,
          TypeList<Rest...>> {};
template <class List>
using unique_t = typename Unique<TypeList<>, List>::type;

}  // namespace weft::core
