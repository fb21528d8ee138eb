// data/collate.hpp -- samples become a batch.
// In: samples of one type. Out: the same structure with every leaf stacked.
//
//   at::Tensor                             stacked at a new first dim
//   bool, integers and enums, float, double  a tensor of bool, int64, float32, float64
//   std::string                            a std::vector of them
//   std::vector and std::array of numbers  rows of a tensor, all equally long
//   torch::data::Example, pairs, tuples, arrays, vectors, optionals, maps   the same of stacked elements; all samples
//   have the same keys and lengths a struct of tensors                    itself, if it opens itself up by weft_visit
//   (core/visit.hpp) a struct with other members            its `using Batch = ...;`: both open themselves up, and
//   member i becomes member i
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/data/example.h>

#include <weft/core/error.hpp>
#include <weft/core/visit.hpp>
#include <weft/data/dataset.hpp>

namespace weft::inline v0::data {

// Stacks samples as above. Loaders use it unless they are given a collate of one's own.
template <class Sample>
auto collate(std::vector<Sample> samples);

namespace detail {

template <class T>
concept Numeric = std::is_arithmetic_v<T> || std::is_enum_v<T>;
template <class T>
concept StringLike = std::same_as<T, std::string>;
template <class T>
inline constexpr bool is_array_v = false;
template <class T, std::size_t Size>
inline constexpr bool is_array_v<std::array<T, Size>> = true;
template <class T>
inline constexpr bool is_vector_v = false;
template <class T>
inline constexpr bool is_vector_v<std::vector<T>> = true;
template <class T>
inline constexpr bool is_optional_v = false;
template <class T>
inline constexpr bool is_optional_v<std::optional<T>> = true;
template <class T>
concept MapLike = requires(T& map) {
  typename T::key_type;
  typename T::mapped_type;
  map.try_emplace(map.begin()->first);
};
template <class T>
concept WithoutTarget = core::ExampleLike<T> && requires { requires std::is_void_v<typename T::TargetType>; };
template <class T>
concept NamesBatch = core::UserVisited<T> && requires { requires core::UserVisited<typename T::Batch>; };

template <class T>
consteval bool collatable();

// Members of a struct that is its own batch: each must become what it is. Its calls say so at compile time.
template <class Struct>
struct MembersStayAlike {
  template <class Member>
  void operator()(Member&) const {
    static_assert(collatable<Member>(),
                  "weft: collate: a member of this sample cannot be stacked: give the sample a `using Batch = ...;`, "
                  "or the loader a collate of your own");
    if constexpr (collatable<Member>())
      static_assert(std::is_same_v<decltype(collate(std::declval<std::vector<Member>>())), Member>,
                    "weft: collate: a struct that is its own batch holds tensors and structures of tensors; for "
                    "numbers and strings give the sample a `using Batch = ...;` "
                    "with tensors and std::vector<std::string> in their places");
  }
};

template <class Tuple, std::size_t... I>
consteval bool collatable_elements(std::index_sequence<I...>) {
  return (collatable<std::tuple_element_t<I, Tuple>>() && ...);
}

template <class T>
consteval bool collatable() {
  if constexpr (std::is_same_v<T, at::Tensor> || Numeric<T> || StringLike<T> || core::UserVisited<T>)
    return true;
  else if constexpr (WithoutTarget<T>)
    return collatable<typename T::DataType>();
  else if constexpr (core::ExampleLike<T>)
    return collatable<typename T::DataType>() && collatable<typename T::TargetType>();
  else if constexpr (core::TupleLike<T>)
    return collatable_elements<T>(std::make_index_sequence<std::tuple_size_v<T>>{});
  else if constexpr (is_vector_v<T> || is_optional_v<T>)
    return collatable<typename T::value_type>();
  else if constexpr (MapLike<T>)
    return collatable<typename T::mapped_type>();
  else
    return false;
}

template <class Number>
constexpr at::ScalarType dtype_of_numbers() {
  if constexpr (std::is_same_v<Number, bool>)
    return at::kBool;
  else if constexpr (std::is_floating_point_v<Number>)
    return std::is_same_v<Number, float> ? at::kFloat : at::kDouble;
  else
    return at::kLong;  // as PyTorch: class numbers are int64, however they were stored
}

// One row of each sample, all equally long.
template <class Number, class Rows>
at::Tensor tensor_of_rows(Rows const& rows) {
  constexpr auto dtype = dtype_of_numbers<Number>();
  using Stored = std::conditional_t<
      dtype == at::kBool, bool,
      std::conditional_t<dtype == at::kFloat, float, std::conditional_t<dtype == at::kDouble, double, std::int64_t>>>;
  at::Tensor tensor = at::empty(
      {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(rows.front().size())}, dtype);
  auto* to = tensor.mutable_data_ptr<Stored>();
  for (auto const& row : rows)
    for (auto const& number : row) *to++ = static_cast<Stored>(number);
  return tensor;
}

// All samples of a batch are of one length or shape as the first; else which one is not.
inline void require_alike(bool alike, std::size_t sample, char const* what, std::string const& here,
                          std::string const& first) {
  if (!alike)
    fail<DataError>("weft: collate: sample ", sample, " of the batch has ", what, " ", here, ", the first has ", first,
                    ": make samples alike, or give the loader a collate of your own");
}

at::Tensor stacked(std::vector<at::Tensor> const& tensors);

template <class Container>
void require_lengths(std::vector<Container> const& samples) {
  for (std::size_t i = 1; i < samples.size(); ++i)
    require_alike(samples[i].size() == samples[0].size(), i, "a list of", std::to_string(samples[i].size()),
                  std::to_string(samples[0].size()));
}

// collate of what `part` takes out of each sample.
template <class Sample, class Part>
auto collated_part(std::vector<Sample>& samples, Part part) {
  std::vector<std::remove_cvref_t<decltype(part(samples.front(), std::size_t{}))>> column;
  column.reserve(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) column.push_back(std::move(part(samples[i], i)));
  return collate(std::move(column));
}

template <class Tuple, std::size_t... I>
auto collated_tuple(std::vector<Tuple>& samples, std::index_sequence<I...>) {
  auto element = [&samples]<std::size_t Index>(std::integral_constant<std::size_t, Index>) {
    return collated_part(samples, [](Tuple& sample, std::size_t) -> auto& { return std::get<Index>(sample); });
  };
  if constexpr (is_array_v<Tuple>)
    return std::array{element(std::integral_constant<std::size_t, I>{})...};
  else if constexpr (requires { typename Tuple::first_type; })
    return std::pair{element(std::integral_constant<std::size_t, I>{})...};
  else
    return std::tuple{element(std::integral_constant<std::size_t, I>{})...};
}

template <template <class...> class Map, class Key, class Value, class... Rest>
auto emptied(Map<Key, Value, Rest...> const*) {
  using Collated = decltype(collate(std::declval<std::vector<Value>>()));
  if constexpr (requires { typename Map<Key, Collated>::hasher; })
    return Map<Key, Collated>();
  else
    return Map<Key, Collated, typename Map<Key, Value, Rest...>::key_compare>();
}

template <class Map>
auto collated_map(std::vector<Map>& samples) {
  auto batch = emptied(static_cast<Map const*>(nullptr));
  for (std::size_t i = 1; i < samples.size(); ++i)
    require_alike(samples[i].size() == samples[0].size(), i, "a map of", std::to_string(samples[i].size()),
                  std::to_string(samples[0].size()));
  for (auto const& [key, unused] : samples.front())
    batch.emplace(key, collated_part(samples, [&key = key](Map& sample, std::size_t i) -> auto& {
                    auto const found = sample.find(key);
                    if (found == sample.end()) {
                      if constexpr (requires { core::message(key); })
                        fail<DataError>("weft: collate: sample ", i, " of the batch has no key ", key,
                                        ", the first has");
                      fail<DataError>("weft: collate: sample ", i, " of the batch lacks a key that the first has");
                    }
                    return found->second;
                  }));
  return batch;
}

template <class Optional>
auto collated_optional(std::vector<Optional>& samples) {
  std::optional<decltype(collate(std::declval<std::vector<typename Optional::value_type>>()))> batch;
  for (std::size_t i = 1; i < samples.size(); ++i)
    require_alike(samples[i].has_value() == samples[0].has_value(), i, "an optional",
                  samples[i] ? "with a value" : "without a value", samples[0] ? "one with" : "one without");
  if (samples.front()) batch = collated_part(samples, [](Optional& sample, std::size_t) -> auto& { return *sample; });
  return batch;
}

template <class Vector>
auto collated_vector(std::vector<Vector>& samples) {
  using Element = typename Vector::value_type;
  require_lengths(samples);
  if constexpr (Numeric<Element>) {
    return tensor_of_rows<Element>(samples);
  } else {
    std::vector<decltype(collate(std::declval<std::vector<Element>>()))> batch;
    for (std::size_t element = 0; element < samples.front().size(); ++element)
      batch.push_back(
          collated_part(samples, [element](Vector& sample, std::size_t) -> auto& { return sample[element]; }));
    return batch;
  }
}

template <class Sample>
struct BatchOfStruct {
  using type = Sample;
};
template <NamesBatch Sample>
struct BatchOfStruct<Sample> {
  using type = typename Sample::Batch;
};

// The n-th call of a weft_visit is the n-th member, in samples and batch alike.
template <class Sample>
auto collated_struct(std::vector<Sample>& samples) {
  using Batch = typename BatchOfStruct<Sample>::type;
  static_assert(std::is_default_constructible_v<Batch>,
                "weft: collate: the batch of this sample is filled member by member: give it a default constructor");
  if constexpr (!NamesBatch<Sample>) weft_visit(samples.front(), MembersStayAlike<Sample>{});
  std::vector<void*> members;
  for (Sample& sample : samples) weft_visit(sample, [&members](auto& member) { members.push_back(&member); });
  std::size_t const num_members = members.size() / samples.size();

  Batch batch{};
  std::size_t filled = 0;
  weft_visit(batch, [&](auto& to) {
    std::size_t seen = 0;
    bool fits = false;
    weft_visit(samples.front(), [&](auto& first) {
      using Member = std::remove_reference_t<decltype(first)>;
      if (seen++ != filled) return;
      if constexpr (collatable<Member>())
        if constexpr (std::is_same_v<decltype(collate(std::declval<std::vector<Member>>())),
                                     std::remove_reference_t<decltype(to)>>) {
          std::vector<Member> column;
          for (std::size_t i = 0; i < samples.size(); ++i)
            column.push_back(std::move(*static_cast<Member*>(members[i * num_members + filled])));
          to = collate(std::move(column));
          fits = true;
        }
    });
    if (!fits)
      fail<ConfigurationError>("weft: collate: member ", filled, " of the batch, as its weft_visit counts from 0, ",
                               filled < num_members ? "cannot hold the stacked members of the samples: numbers become "
                                                      "an at::Tensor, strings a std::vector<std::string>"
                                                    : "has no member of the samples to stand for");
    ++filled;
  });
  if (filled != num_members)
    fail<ConfigurationError>("weft: collate: samples have ", num_members, " members, and their batch ", filled,
                             ": weft_visit has to name them in one order");
  return batch;
}

}  // namespace detail

template <class Sample>
inline constexpr bool is_collatable_v = detail::collatable<Sample>();

template <class Sample>
auto collate(std::vector<Sample> samples) {
  using namespace detail;
  static_assert(is_collatable_v<Sample>,
                "weft: collate: samples of this type cannot be stacked: write weft_visit(Sample&, f) next to it "
                "(core/visit.hpp), or give the loader a collate of your own: "
                "setup_dataloader(dataset, options, [](std::vector<Sample> samples) { return batch; })");
  if (samples.empty()) fail<DataError>("weft: collate: there are no samples to make a batch of");
  if constexpr (std::is_same_v<Sample, at::Tensor>) {
    return stacked(samples);
  } else if constexpr (Numeric<Sample>) {
    return tensor_of_rows<Sample>(std::array{std::move(samples)}).squeeze(0);
  } else if constexpr (StringLike<Sample>) {
    return samples;
  } else if constexpr (core::UserVisited<Sample>) {
    return collated_struct(samples);
  } else if constexpr (core::ExampleLike<Sample>) {
    using Data = decltype(collate(std::declval<std::vector<typename Sample::DataType>>()));
    auto data = collated_part(samples, [](Sample& sample, std::size_t) -> auto& { return sample.data; });
    if constexpr (WithoutTarget<Sample>)
      return torch::data::Example<Data, void>(std::move(data));
    else
      return torch::data::Example<Data, decltype(collate(std::declval<std::vector<typename Sample::TargetType>>()))>(
          std::move(data), collated_part(samples, [](Sample& sample, std::size_t) -> auto& { return sample.target; }));
  } else if constexpr (is_vector_v<Sample>) {
    return collated_vector(samples);
  } else if constexpr (is_optional_v<Sample>) {
    return collated_optional(samples);
  } else if constexpr (MapLike<Sample>) {
    return collated_map(samples);
  } else if constexpr (core::TupleLike<Sample>) {
    if constexpr (is_array_v<Sample> && Numeric<std::tuple_element_t<0, Sample>>)
      return tensor_of_rows<std::tuple_element_t<0, Sample>>(samples);
    else
      return collated_tuple(samples, std::make_index_sequence<std::tuple_size_v<Sample>>{});
  } else {
    return at::Tensor();  // refused above; not void, which would be more errors
  }
}

}  // namespace weft::data

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data/collate.ipp>
#endif
