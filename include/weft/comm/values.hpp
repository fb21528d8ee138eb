// comm/values.hpp -- collectives on what a training loop holds: tensors, numbers, and containers of them.
// In: a value per rank. Out: the value reduced, gathered or broadcast; the input is never changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <weft/comm/communicator.hpp>
#include <weft/core/diagnose.hpp>
#include <weft/core/error.hpp>
#include <weft/core/visit.hpp>

namespace weft::inline v0::comm {

/// Calls f on each tensor and number inside a value, which is the caller's own. What it shares with others is copied
/// before: f writes into it. Strings are passed over.
template <class T, class F>
void for_each_value(T& value, F const& f) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, at::Tensor> || std::is_arithmetic_v<Plain>) {
    f(value);
  } else if constexpr (core::Leafless<Plain> && !core::UserVisited<Plain>) {
    return;
  } else if constexpr (core::is_shared_ptr_v<Plain>) {
    using Element = std::remove_const_t<typename Plain::element_type>;
    constexpr bool copies = std::is_copy_constructible_v<Element> && !std::is_polymorphic_v<Element> &&
                            !std::is_const_v<T>;
    static_assert(copies,
                  "weft: what this std::shared_ptr points to cannot be copied as what it is, and others may hold it: "
                  "pass the object, or a std::unique_ptr");
    if constexpr (copies) {
      if (!value) return;
      auto own = std::make_shared<Element>(*value);
      for_each_value(*own, f);
      value = std::move(own);
    }
  } else if constexpr (core::HasParts<Plain>) {
    core::for_each_part(value, [&f](auto& part) { for_each_value(part, f); });
  } else {
    static_assert(core::always_false_v<T>,
                  "weft: this value holds no tensors or numbers that weft can find: write weft_visit(T&, f) next to T");
  }
}

/// A number as a tensor that holds it exactly.
template <class Number>
at::Tensor tensor_of(Number value, at::Device device) {
  if constexpr (std::is_floating_point_v<Number>)
    return at::full({1}, static_cast<double>(value), at::TensorOptions(at::kDouble)).to(device);
  else
    return at::full({1}, static_cast<int64_t>(value), at::TensorOptions(at::kLong)).to(device);
}
template <class Number>
Number number_of(at::Tensor const& tensor) {
  if constexpr (std::is_floating_point_v<Number>)
    return static_cast<Number>(tensor.item<double>());
  else
    return static_cast<Number>(tensor.item<int64_t>());
}

/// What a tensor holds, without its history, as it would be in memory.
at::Tensor values_of(char const* call, at::Tensor const& tensor);

/// Tensors and numbers of `value`, each reduced over the ranks of `group`; null is a group of one.
template <class T>
T reduced(Communicator* group, T value, ReduceOp op) {
  for_each_value(value, [&]<class Leaf>(Leaf& leaf) {
    if constexpr (std::is_same_v<Leaf, at::Tensor>) {
      leaf = values_of("all_reduce", leaf).clone(at::MemoryFormat::Contiguous);
      if (group) group->all_reduce(leaf, op);
    } else if constexpr (!std::is_const_v<Leaf>) {  // keys of maps stay
      if (op == ReduceOp::average && !std::is_floating_point_v<Leaf>)
        fail<CommunicationError>(
            "weft: all_reduce: an average of integers would have to round; pass a double, or ReduceOp::sum and divide");
      if (op == ReduceOp::sum && std::is_same_v<Leaf, bool>)
        fail<CommunicationError>("weft: all_reduce: a sum of bool; pass an int to count, or ask any_of or all_of");
      if (!group) return;
      auto buffer = tensor_of(leaf, group->device());
      group->all_reduce(buffer, op);
      leaf = number_of<Leaf>(buffer);
    }
  });
  return value;
}

/// Tensors of `value` with a new first dimension: one entry per rank, in rank order. Shapes are equal on all ranks.
/// A single number becomes a vector of the ranks' numbers.
template <class T>
auto gathered(Communicator* group, T value) {
  auto const ranks = group ? group->size() : 1;
  auto const gather = [&](at::Tensor const& tensor) {
    auto const input = values_of("all_gather", tensor).contiguous();
    auto sizes = input.sizes().vec();
    sizes.insert(sizes.begin(), ranks);
    auto output = at::empty(sizes, input.options());
    if (group)
      group->all_gather_into(output, input);
    else
      output.copy_(input.unsqueeze(0));
    return output;
  };
  if constexpr (std::is_arithmetic_v<T>) {
    auto const all = gather(tensor_of(value, group ? group->device() : at::Device(at::kCPU))).reshape({-1}).cpu();
    std::vector<T> numbers;
    for (int rank = 0; rank < ranks; ++rank) numbers.push_back(number_of<T>(all[rank]));
    return numbers;
  } else {
    static_assert(is_visitable_v<at::Tensor, T>,
                  "weft: all_gather: pass a tensor, a number, or a container of tensors");
    for_each_value(value, [&]<class Leaf>(Leaf& leaf) {
      if constexpr (std::is_same_v<Leaf, at::Tensor>)
        leaf = gather(leaf);
      else if constexpr (!std::is_const_v<Leaf>)
        fail<CommunicationError>(
            "weft: all_gather: a number inside a container has no room for the other ranks' numbers; pass it as a "
            "tensor, or alone");
    });
    return value;
  }
}

/// Bytes of rank `source` on every rank, whatever length the others pass.
std::string broadcast_bytes(Communicator& group, std::string bytes, int source);

/// Every rank's bytes, in rank order, on every rank.
std::vector<std::string> all_gather_bytes(Communicator& group, std::string const& bytes);
/// The same on rank `destination` alone; nothing elsewhere.
std::vector<std::string> gather_bytes(Communicator& group, std::string const& bytes, int destination = 0);

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/values.ipp>
#endif
