// unit/blocks.hpp -- modules that a policy names by their type.
// In: a holder (what WEFT_MODULE declares) or the class that it holds. Out: whether a module is one.
#pragma once

#include <memory>
#include <type_traits>

#include <torch/nn/module.h>

#include <weft/unit/hooks.hpp>

namespace weft::inline v0::unit {

/// The class behind a holder (torch::nn::Linear, WEFT_MODULE's) or a shared pointer to a module; else void.
template <class M>
struct ImplOf {
  using type = void;
};
template <class M>
  requires requires { typename M::ContainedType; }
struct ImplOf<M> {
  using type = typename M::ContainedType;
};
template <class Impl>
  requires std::is_base_of_v<torch::nn::Module, Impl>
struct ImplOf<std::shared_ptr<Impl>> {
  using type = Impl;
};
template <class M>
using impl_of_t = typename ImplOf<std::remove_cvref_t<M>>::type;

/// A block is named by its holder or by its class.
template <class Block>
using class_of_block_t = std::conditional_t<std::is_void_v<impl_of_t<Block>>, Block, impl_of_t<Block>>;

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
