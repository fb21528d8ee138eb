// unit/blocks.hpp -- modules that a policy names by their type.
// In: a holder (what WEFT_MODULE declares) or the class that it holds. Out: whether a module is one.
#pragma once

#include <type_traits>

#include <torch/nn/module.h>

#include <weft/unit/hooks.hpp>

namespace weft::inline v0::unit {

template <class Block>
struct ClassOfBlock {
  using type = Block;
};
template <class Holder>
  requires requires { typename Holder::ContainedType; }
struct ClassOfBlock<Holder> {
  using type = typename Holder::ContainedType;
};
template <class Block>
using class_of_block_t = typename ClassOfBlock<Block>::type;

template <class Block>
inline constexpr bool is_module_block_v = std::is_base_of_v<torch::nn::Module, class_of_block_t<Block>>;
/// A holder says whether it holds units; a class may be that of a unit or not.
template <class Block>
inline constexpr bool is_unit_block_v = std::is_same_v<class_of_block_t<Block>, Block> ||
                                        std::is_base_of_v<UnitBase, class_of_block_t<Block>>;

template <class Block>
bool is_block(torch::nn::Module& module) {
  return dynamic_cast<class_of_block_t<Block>*>(&module) != nullptr;
}

}  // namespace weft::unit
