// data_parallel/scatter.hpp -- a batch is cut into rows for several devices, and what comes back is put together.
// In: the arguments of a call, or its results on each device. Out: each device's arguments, or one result.
//
//   model(batch, mask, 0.5)               batch and mask are cut along dim 0, alike; the number goes to each device
//   model(batch, weft::whole(table))      table goes to each device as it is
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <weft/core/error.hpp>
#include <weft/core/visit.hpp>

namespace weft::inline v0 {

/// An argument that DataParallel does not cut. To other strategies it is the value itself.
template <class T>
struct Whole {
  T value;
  operator T const&() const noexcept { return value; }
};
template <class T, class F>
  requires is_visitable_v<at::Tensor, T>
void weft_visit(Whole<T>& argument, F&& f) {
  f(argument.value);
}
template <class T>
Whole<std::decay_t<T>> whole(T&& value) {
  return {std::forward<T>(value)};
}

namespace data_parallel {

template <class T>
inline constexpr bool is_whole_v = false;
template <class T>
inline constexpr bool is_whole_v<Whole<T>> = true;

/// A tensor to cut, where it lies in the caller's arguments.
struct Cut {
  at::Tensor const* tensor;
  std::size_t argument;
};

/// Rows in equal parts, the last may be smaller and there may be fewer parts than devices: at::chunk's, as LibTorch's
/// and PyTorch's scatter have it.
struct Division {
  std::int64_t rows = 0;
  std::int64_t rows_per_part = 0;
  int num_parts = 1;
  std::int64_t begin(int part) const { return part * rows_per_part; }
  std::int64_t size(int part) const { return std::min(rows_per_part, rows - begin(part)); }
};

constexpr Division division_of(std::int64_t rows, int num_devices) {
  if (rows <= 1 || num_devices <= 1) return {rows, rows, 1};
  auto const per_part = (rows + num_devices - 1) / num_devices;
  return {rows, per_part, static_cast<int>((rows + per_part - 1) / per_part)};
}

/// Tensors without dims are no batch.
inline bool has_rows(at::Tensor const& tensor) { return tensor.defined() && tensor.dim() > 0; }

Division division_of(std::vector<Cut> const& cuts, int num_devices);

/// In the copy of an argument, for one part of the rows; or whole. `originals`: where the argument's own tensors lie.
class Placed {
 public:
  Placed(std::vector<Cut> const& originals, std::optional<std::pair<Division, int>> part, at::Device device)
      : originals_(originals), part_(part), device_(device) {}

  void operator()(at::Tensor& tensor) const;
  void operator()(at::Tensor const&) const { refuse("a tensor that cannot be replaced (const, or in an ArrayRef)"); }

 private:
  [[noreturn]] static void refuse(char const* what) {
    fail<ConfigurationError>("weft: DataParallel: an argument holds ", what,
                             "; pass a tensor, or a container of tensors by value");
  }

  std::vector<Cut> const& originals_;
  std::optional<std::pair<Division, int>> part_;
  at::Device device_;
};

template <class T>
constexpr bool check_argument() {
  static_assert(is_whole_v<T> || is_visitable_v<at::Tensor, T>,
                "weft: DataParallel looks for tensors in the arguments to cut them, and finds no way into this one: "
                "write weft_visit(T&, f) next to its type, or weft::whole(x) around it");
  static_assert(std::is_copy_constructible_v<T>,
                "weft: DataParallel gives each device a copy of the arguments (tensors are handles), and this one "
                "cannot be copied");
  return true;
}

template <class T>
void find_cuts(std::vector<Cut>& cuts, std::size_t argument, T const& value) {
  if constexpr (is_visitable_v<at::Tensor, T> && !is_whole_v<T>)
    for_each_leaf<at::Tensor>(value, [&](at::Tensor const& tensor) { cuts.push_back({&tensor, argument}); });
}

/// The argument as one device gets it.
template <class T>
auto part_of(std::vector<Cut> const& cuts, T const& value, Division const& division, int part, at::Device device) {
  if constexpr (is_whole_v<T>) {
    auto copy = value.value;
    if constexpr (is_visitable_v<at::Tensor, decltype(copy)>) {
      std::vector<Cut> originals;
      for_each_leaf<at::Tensor>(value.value, [&](at::Tensor const& tensor) { originals.push_back({&tensor, 0}); });
      for_each_leaf<at::Tensor>(copy, Placed(originals, std::nullopt, device));
    }
    return copy;
  } else {
    auto copy = value;
    if constexpr (is_visitable_v<at::Tensor, T>)
      for_each_leaf<at::Tensor>(copy, Placed(cuts, std::pair(division, part), device));
    return copy;
  }
}

/// The parts' rows one after another; what has no dims becomes a vector with an element for each part.
at::Tensor gathered(std::vector<at::Tensor> const& parts, std::size_t output, at::Device device);

/// The first part's result with all parts' tensors in it; numbers are those of the first.
template <class Result>
Result gathered(std::vector<std::optional<Result>>& parts, at::Device device) {
  std::vector<std::vector<at::Tensor*>> outputs(parts.size());
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for_each_leaf<at::Tensor>(*parts[part], [&](at::Tensor& tensor) { outputs[part].push_back(&tensor); });
    if (outputs[part].size() != outputs[0].size())
      fail<ConfigurationError>("weft: DataParallel puts outputs together, but device 0 gave ", outputs[0].size(),
                               " tensors and device ", part, " gave ", outputs[part].size());
  }
  for (std::size_t output = 0; output < outputs[0].size(); ++output) {
    std::vector<at::Tensor> tensors;
    for (auto const& part : outputs) tensors.push_back(*part[output]);
    *outputs[0][output] = gathered(tensors, output, device);
  }
  return std::move(*parts[0]);
}

}  // namespace data_parallel
}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data_parallel/scatter.ipp>
#endif
