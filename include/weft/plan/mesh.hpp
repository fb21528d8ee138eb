// plan/mesh.hpp -- ranks as a grid with named axes.
// In: Axis<"name", extent>..., the last of which varies fastest. Out: a type that knows its axes and, if nothing is
// left to Infer, its world. Coordinates and groups of ranks are in plan/grid.hpp.
#pragma once

#include <array>

#include <weft/core/fixed_string.hpp>
#include <weft/core/rules.hpp>
#include <weft/plan/policy.hpp>

namespace weft::inline v0 {

// The extent that makes the product of all extents equal to the number of ranks.
inline constexpr int Infer = -1;

template <core::FixedString Name, int Extent = Infer>
struct Axis {
  static constexpr std::string_view name = Name.view();
  static constexpr int extent = Extent;
};

namespace plan {

template <class T>
struct IsAxis : std::false_type {};
template <core::FixedString Name, int Extent>
struct IsAxis<Axis<Name, Extent>> : std::true_type {};

enum class MeshFault { none, not_an_axis, extent, several_infer, same_name };

// Where the axes' numbers are; anything that is not an axis counts for nothing, and is reported as such.
template <class... Axes>
constexpr MeshFault mesh_fault() {
  if constexpr (!(IsAxis<Axes>::value && ...)) {
    return MeshFault::not_an_axis;
  } else {
    constexpr std::size_t num_axes = sizeof...(Axes);
    constexpr std::array<std::string_view, num_axes> names{Axes::name...};
    if (((Axes::extent < 1 && Axes::extent != Infer) || ...)) return MeshFault::extent;
    if ((0 + ... + (Axes::extent == Infer ? 1 : 0)) > 1) return MeshFault::several_infer;
    for (std::size_t i = 0; i < num_axes; ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (names[i] == names[j]) return MeshFault::same_name;
    return MeshFault::none;
  }
}

// The rules of a mesh; see core/rules.hpp.
#define WEFT_RULE(Name, Condition, Message) WEFT_DETAIL_RULE(Name, M, Condition, Message)
namespace mesh_rules {
WEFT_RULE(NotAnAxis, (M::fault == MeshFault::not_an_axis),
          "weft: Mesh<...> is made of axes: write Mesh<Axis<\"data_parallel\", 2>, Axis<\"tensor_parallel\", Infer>>");
WEFT_RULE(Extent, (M::fault == MeshFault::extent),
          "weft: Mesh<...>: the extent of an axis is at least 1: write a number of ranks, or Infer");
WEFT_RULE(SeveralInfer, (M::fault == MeshFault::several_infer),
          "weft: Mesh<...>: only one axis can be inferred: write Infer once and numbers for the other axes");
WEFT_RULE(SameName, (M::fault == MeshFault::same_name),
          "weft: Mesh<...> has two axes of one name: give each axis its own");
}  // namespace mesh_rules
#undef WEFT_RULE

struct MeshRules
    : core::RuleTable<mesh_rules::NotAnAxis, mesh_rules::Extent, mesh_rules::SeveralInfer, mesh_rules::SameName> {};

}  // namespace plan

// Mesh<> is the absence of a mesh: all ranks are alike.
template <class... Axes>
struct Mesh {
  using category = weft::category::mesh;
  static constexpr std::string_view name = "Mesh";

  static constexpr std::size_t num_axes = sizeof...(Axes);
  static constexpr plan::MeshFault fault = plan::mesh_fault<Axes...>();
  static constexpr bool valid = fault == plan::MeshFault::none;

  // Names and extents in the order written.
  static constexpr std::array<std::string_view, num_axes> names() {
    if constexpr (valid)
      return {Axes::name...};
    else
      return {};
  }
  static constexpr std::array<int, num_axes> extents() {
    if constexpr (valid)
      return {Axes::extent...};
    else
      return {};
  }

  static constexpr bool has_axis(std::string_view name) {
    for (auto axis : names())
      if (axis == name) return true;
    return false;
  }

  // The number of ranks that the written extents make, and whether that is all of them.
  static constexpr int known_product = [] {
    int product = 1;
    for (int extent : extents()) product *= extent == Infer ? 1 : extent;
    return product;
  }();
  static constexpr bool is_known = [] {
    for (int extent : extents())
      if (extent == Infer) return false;
    return num_axes > 0 && valid;
  }();
  static constexpr int world = is_known ? known_product : 0;  // 0: known when the ranks are

  // One sentence for a mesh that makes no sense.
  static consteval bool check() { return core::Reported<core::Violation<plan::MeshRules::first_rule<Mesh, true>>>; }
};

template <class T>
inline constexpr bool is_mesh_v = is_of_v<T, category::mesh>;

}  // namespace weft
