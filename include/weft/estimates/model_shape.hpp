// estimates/model_shape.hpp -- the sizes of a model.
// In: numbers, written by hand or by shape_of(). Out: what estimates are of; no torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <weft/core/error.hpp>

namespace weft::inline v0 {

struct ParameterShape {
  int64_t numel = 0;
  bool trainable = true;
  bool has_statistics = false;  // of a batch norm, say: a precision that keeps its statistics keeps it, too, as it is
  bool operator==(ParameterShape const&) const = default;
};

/// A unit's own parameters, without those of units inside it, and the unit around it (-1: the root alone).
struct UnitShape {
  int parent = -1;
  std::vector<ParameterShape> parameters{};
  std::size_t before_inner =
      0;  // so many of the first are used before the units inside: their gradients arrive after those units'
  bool operator==(UnitShape const&) const = default;
};

struct ModelShape {
  std::size_t element_bytes = 4;  // before setup; a precision such as Bf16 has its own
  std::vector<UnitShape>
      units{};  // in the order in which the model registers them: the root, then each before those inside it
  std::size_t optimizer_states = 0;  // tensors for each parameter, as large as it: SGD 0, with momentum 1, Adam 2
  bool operator==(ModelShape const&) const = default;
};

namespace estimates {

constexpr void check(ModelShape const& shape, int num_ranks) {
  if (num_ranks < 1)
    fail<ConfigurationError>("weft: estimate on ", num_ranks,
                             " ranks: say how many there are, as in estimate<FSDP<...>>(shape, 8)");
  for (std::size_t i = 0; i < shape.units.size(); ++i)
    if (int const parent = shape.units[i].parent; i == 0 ? parent != -1 : parent < 0 || parent >= static_cast<int>(i))
      fail<ConfigurationError>("weft: estimate: unit ", i, " has the parent ", parent,
                               ": unit 0 is the root with parent -1, and every other one comes after its parent");
}

}  // namespace estimates

}  // namespace weft
