// data/dataset.hpp -- what can be loaded.
// In: a user's type. Out: whether samples are asked for by index or come one after another, of which type they are, and
// how one is read.
//
//   map style   size(), and get(index), operator[](index) or get_batch(indices), as torch::data's datasets and a
//   std::vector have them. It may have
//                 set_epoch(epoch)          before a loop: what the loop's epoch is
//   stream      std::optional<Sample> next(), which is empty at the end. It is copied at the start of each loop. It may
//   have
//                 shard(num_shards, index)  before the first next(): this copy gives its own part, instead of every
//                 num_shards-th sample skip(count)               passes over samples, cheaper than next(); returns how
//                 many there still were set_epoch(epoch)          before the first next(): what this loop's epoch is
//                 size()                    samples in a loop, of all ranks together (with shard: of this part)
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/data/datasets/base.h>

#include <weft/core/error.hpp>

namespace weft::inline v0 {

// A sample could not be read, or samples not be made a batch. What was thrown is nested inside
// (std::rethrow_if_nested).
struct DataError : Error {
  using Error::Error;
};

namespace data {
namespace detail {

template <class T>
concept Sized = requires(T const& dataset) {
  { dataset.size() } -> std::convertible_to<std::optional<std::size_t>>;
};
template <class T>
concept GetsSamples = requires(T& dataset, std::size_t index) { dataset.get(index); };
template <class T>
concept GetsBatches = requires(T& dataset, std::vector<std::size_t>& indices) { dataset.get_batch(indices); };
template <class T>
concept Subscripted = requires(T& dataset, std::size_t index) { dataset[index]; };
template <class T>
concept Stateful = requires { requires T::is_stateful; };

// torch::data::datasets::Dataset's own get_batch, which calls get for each index.
template <class T>
concept InheritsGetBatch = requires {
  requires std::is_same_v<decltype(&T::get_batch),
                          std::vector<typename T::ExampleType> (
                              torch::data::datasets::Dataset<typename T::SelfType, typename T::ExampleType>::*)(
                              c10::ArrayRef<std::size_t>)>;
};
// Sample by sample, so that a failing one is known; whoever writes a get_batch has a faster way than that.
template <class T>
inline constexpr bool read_singly_v = InheritsGetBatch<T> || !GetsBatches<T>;

// Reading through a const reference is safe for several threads at once, as everywhere in C++; else each worker has a
// copy.
template <class T>
inline constexpr bool read_shared_v =
    read_singly_v<T> ? (GetsSamples<T> ? GetsSamples<T const> : Subscripted<T const>) : GetsBatches<T const>;

template <class T>
struct OptionalValue;
template <class T>
struct OptionalValue<std::optional<T>> {
  using type = T;
};

template <class T>
concept Shardable = requires(T& stream, std::size_t count) { stream.shard(count, count); };
template <class T>
concept Skippable = requires(T& stream, std::size_t count) {
  { stream.skip(count) } -> std::convertible_to<std::size_t>;
};
template <class T>
concept KnowsEpoch = requires(T& stream, std::uint64_t epoch) { stream.set_epoch(epoch); };

}  // namespace detail

template <class T>
concept StreamDataset = std::copy_constructible<T> &&
                        requires(T& stream) { typename detail::OptionalValue<decltype(stream.next())>::type; };
template <class T>
concept MapDataset = !StreamDataset<T> && detail::Sized<T> &&
                     (detail::GetsSamples<T> || detail::GetsBatches<T> || detail::Subscripted<T>) &&
                     !detail::Stateful<T> && std::move_constructible<T> &&
                     (detail::read_shared_v<T> || std::copy_constructible<T>);
template <class T>
concept AnyDataset = MapDataset<T> || StreamDataset<T>;

// The facade asks this of whatever was passed as a dataset. False after the sentence, so that the caller can stop
// follow-up errors.
template <class Type>
constexpr bool assert_dataset() {
  static_assert(AnyDataset<Type>,
                "weft: setup_dataloader: pass a dataset by value: with size() and get(index), operator[] or "
                "get_batch(indices), as torch::data's have it, or a stream, "
                "which has std::optional<Sample> next(); each must be copyable or readable when const; not a stateful "
                "one of torch::data's, which cannot be cut over ranks");
  return AnyDataset<Type>;
}

namespace detail {

template <class Dataset>
decltype(auto) read_one(Dataset& dataset, std::size_t index) {
  if constexpr (GetsSamples<Dataset>)
    return dataset.get(index);
  else
    return dataset[index];
}

template <class T>
auto sample_of() {
  if constexpr (StreamDataset<T>)
    return std::type_identity<typename OptionalValue<decltype(std::declval<T&>().next())>::type>{};
  else if constexpr (read_singly_v<T>)
    return std::type_identity<std::remove_cvref_t<decltype(read_one(
        std::declval<std::conditional_t<read_shared_v<T>, T const, T>&>(), std::size_t{}))>>{};
  else
    return std::type_identity<void>{};
}
// Void where the dataset makes batches itself.
template <class T>
using sample_t = typename decltype(sample_of<T>())::type;

// The current exception's text, without LibTorch's stack traces.
std::string text_of_exception();

// Called while an exception is handled, which stays nested in the new one.
template <class... Parts>
[[noreturn]] void fail_while(Parts const&... parts) {
  std::throw_with_nested(DataError(core::message(parts..., ": ", text_of_exception())));
}

std::string list_of(std::vector<std::size_t> const& indices);

}  // namespace detail
}  // namespace data
}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data/dataset.ipp>
#endif
