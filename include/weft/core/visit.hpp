// core/visit.hpp -- walks nested values.
// In: containers, pointers, tuples and users' structs. Out: a call of f for each Leaf inside, in order.
//
// A struct of one's own opens itself up by one function next to it, found by argument-dependent lookup:
//
//   struct Batch { at::Tensor tokens; std::vector<at::Tensor> images; };
//   template <class F> void weft_visit(Batch& batch, F&& f) { f(batch.tokens); f(batch.images); }
#pragma once

#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace weft::inline v0 {
namespace core {

// A value that holds no leaves and is passed over.
template <class T>
concept Leafless = std::is_void_v<T> || std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_empty_v<T> ||
                   std::is_null_pointer_v<T> || std::is_convertible_v<T const&, std::string_view>;

struct AnyVisitor {
  template <class T>
  void operator()(T&&) const {}
};
template <class T>
concept UserVisited = requires(T& value) { weft_visit(value, AnyVisitor{}); };

// torch::data::Example<Data, Target>, known by its shape: core includes no torch. Both aliases are asked for, so that
// a struct with more than these two members is not mistaken for one.
template <class T>
concept ExampleLike = requires(T& value) {
  typename T::DataType;
  typename T::TargetType;
  value.data;
};
template <class T>
concept TupleLike = requires { std::tuple_size<T>::value; };

// std::optional, std::unique_ptr, std::shared_ptr: empty, or something to look at.
template <class T>
concept MaybeLike = std::is_class_v<T> && requires(T& value) {
  static_cast<bool>(value);
  *value;
  value.reset();
};
template <class T>
inline constexpr bool is_shared_ptr_v = false;
template <class T>
inline constexpr bool is_shared_ptr_v<std::shared_ptr<T>> = true;
template <class T>
concept RangeLike = requires(T& value) {
  value.begin() != value.end();
  *value.begin();
};
// value_type where there is one: what *begin() gives may be a stand-in, as in std::vector<bool>.
template <class T>
auto element_of() {
  if constexpr (requires { typename T::value_type; })
    return std::type_identity<std::remove_cv_t<typename T::value_type>>{};
  else
    return std::type_identity<std::remove_cvref_t<decltype(*std::declval<T&>().begin())>>{};
}
template <class T>
using element_t = typename decltype(element_of<T>())::type;
template <class T>
concept ItemLike = requires(T& value) {  // the items of torch::OrderedDict
  value.key();
  value.value();
};
template <class T>
concept LeaflessRange = RangeLike<T> && Leafless<element_t<T>>;

// What for_each_part opens.
template <class T>
concept HasParts = UserVisited<T> || ExampleLike<T> || TupleLike<T> || MaybeLike<T> || ItemLike<T> || RangeLike<T>;

// Calls f for what lies directly inside value: members, elements, what a pointer points to; parts of a const value are
// const.
template <class T, class F>
constexpr void for_each_part(T& value, F const& f) {
  using Value = std::remove_const_t<T>;
  if constexpr (UserVisited<T>) {
    weft_visit(value, f);
  } else if constexpr (UserVisited<Value>) {
    // Only weft_visit(T&, f) exists and value is const: nothing is changed, since f gets const members.
    weft_visit(const_cast<Value&>(value), [&f](auto&& member) { f(std::as_const(member)); });
  } else if constexpr (ExampleLike<Value>) {
    f(value.data);
    if constexpr (requires { value.target; }) f(value.target);
  } else if constexpr (TupleLike<Value>) {
    std::apply([&f](auto&... elements) { (f(elements), ...); }, value);
  } else if constexpr (MaybeLike<Value>) {
    if (!static_cast<bool>(value)) return;
    if constexpr (std::is_const_v<T>)  // a const pointer still points to something mutable
      f(std::as_const(*value));
    else
      f(*value);
  } else if constexpr (ItemLike<Value>) {
    f(value.value());
  } else {
    for (auto&& element : value) f(std::forward<decltype(element)>(element));
  }
}

template <class Leaf, class T>
constexpr bool visitable();

template <class Leaf, class Tuple, std::size_t... I>
constexpr bool visitable_elements(std::index_sequence<I...>) {
  return (visitable<Leaf, std::remove_cv_t<std::tuple_element_t<I, Tuple>>>() && ...);
}

template <class Leaf, class T>
constexpr bool visitable() {
  if constexpr (std::is_same_v<T, Leaf> || UserVisited<T> || Leafless<T>)
    return true;
  else if constexpr (ExampleLike<T>)
    return visitable<Leaf, typename T::DataType>() && visitable<Leaf, typename T::TargetType>();
  else if constexpr (TupleLike<T>)
    return visitable_elements<Leaf, T>(std::make_index_sequence<std::tuple_size<T>::value>{});
  else if constexpr (MaybeLike<T>)
    return visitable<Leaf, std::remove_cvref_t<decltype(*std::declval<T&>())>>();
  else if constexpr (ItemLike<T>)
    return visitable<Leaf, std::remove_cvref_t<decltype(std::declval<T&>().value())>>();
  else if constexpr (RangeLike<T>)
    return visitable<Leaf, element_t<T>>();
  else
    return false;
}

}  // namespace core

// Whether for_each_leaf<Leaf> takes a T. Members that a user's weft_visit hands on are checked when it runs.
template <class Leaf, class T>
inline constexpr bool is_visitable_v = core::visitable<Leaf, std::remove_cvref_t<T>>();

// Calls f(leaf) for each Leaf inside value; a leaf of a const value is const.
template <class Leaf, class T, class F>
constexpr void for_each_leaf(T&& value, F&& f) {
  using Value = std::remove_cvref_t<T>;
  if constexpr (!is_visitable_v<Leaf, Value>) {
    static_assert(is_visitable_v<Leaf, Value>,
                  "weft: this value is neither a leaf, a container of leaves, nor a number: "
                  "write weft_visit(T&, f) next to T");
  } else if constexpr (std::is_same_v<Value, Leaf>) {
    f(value);
  } else if constexpr (core::UserVisited<Value> || !(core::Leafless<Value> || core::LeaflessRange<Value>)) {
    core::for_each_part(value, [&f](auto&& part) { for_each_leaf<Leaf>(part, f); });
  }
}

}  // namespace weft
