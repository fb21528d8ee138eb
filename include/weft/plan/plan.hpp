// plan/plan.hpp -- how the modules of one block are divided over the tensor axis.
// In: members or text paths under styles. Out: a plan as a type; tensor_parallel/ expands it.
//
//   Plan<TransformerBlock, Colwise<&TransformerBlockImpl::w1>, Rowwise<&TransformerBlockImpl::w2>>
//   Plan<TransformerBlock, Colwise<"attention.*.query">>   // where members are private
#pragma once

#include <weft/core/fixed_string.hpp>
#include <weft/plan/policy.hpp>

namespace weft::inline v0 {
namespace plan {

// What a style applies to: a member or a path. Deduced from what is written, so that both stand as Colwise<...>; a
// plain template <auto> takes no literals.
template <class Kind>
struct Target {
  Kind value;
  constexpr Target(Kind member)
    requires std::is_member_object_pointer_v<Kind>
      : value(member) {}
};
template <std::size_t Size>
struct Target<core::FixedString<Size>> {
  core::FixedString<Size> value;
  constexpr Target(char const (&path)[Size]) : value(path) {}
};
template <std::size_t Size>
Target(char const (&)[Size]) -> Target<core::FixedString<Size>>;

template <class Kind>
inline constexpr bool is_path_v = false;
template <std::size_t Size>
inline constexpr bool is_path_v<core::FixedString<Size>> = true;

}  // namespace plan

// Outputs divided: each rank has some of the columns of x W.
template <plan::Target Where>
struct Colwise {
  static constexpr std::string_view name = "Colwise";
  static constexpr auto target = Where.value;
};

// Inputs divided: each rank has a part of the sum, reduced after.
template <plan::Target Where>
struct Rowwise {
  static constexpr std::string_view name = "Rowwise";
  static constexpr auto target = Where.value;
};

// Whole parameters, activations divided along the sequence.
template <plan::Target Where>
struct SequenceParallel {
  static constexpr std::string_view name = "SequenceParallel";
  static constexpr auto target = Where.value;
};

template <class Block, class... Rules>
struct Plan {
  using category = weft::category::plan;
  using block = Block;
  using rules = core::TypeList<Rules...>;
  static constexpr std::string_view name = "Plan";
};

// Function(module, mesh) divides the module itself.
template <auto Function>
struct Parallelize {
  using category = weft::category::plan;
  static constexpr std::string_view name = "Parallelize";
  static constexpr auto function = Function;
};

}  // namespace weft
