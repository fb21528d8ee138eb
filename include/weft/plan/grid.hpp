// plan/grid.hpp -- a mesh once its ranks are counted.
// In: a mesh type and a number of ranks. Out: every rank's coordinates and the groups of ranks along its axes.
//
//   Mesh<Axis<"data_parallel", 2>, Axis<"tensor_parallel", Infer>> on 8 ranks; the last axis varies fastest:
//
//                        tensor_parallel
//      data_parallel 0   0 1 2 3      group(0, "tensor_parallel") = 0 1 2 3
//                    1   4 5 6 7      group(1, "data_parallel")   = 1 5
#pragma once

#include <string>
#include <vector>

#include <weft/core/error.hpp>
#include <weft/plan/mesh.hpp>

namespace weft::inline v0 {

template <std::size_t NumAxes>
class Grid {
 public:
  using Coordinates = std::array<int, NumAxes>;
  using Names = std::array<std::string_view, NumAxes>;

  constexpr Grid(Names const& names, Coordinates const& extents) : names_(names), extents_(extents) {}

  constexpr Names const& names() const { return names_; }
  constexpr Coordinates const& extents() const { return extents_; }
  constexpr bool operator==(Grid const&) const = default;

  constexpr int world() const {
    int world = 1;
    for (int extent : extents_) world *= extent;
    return world;
  }

  constexpr std::size_t axis(std::string_view name) const {
    for (std::size_t i = 0; i < NumAxes; ++i)
      if (names_[i] == name) return i;
    fail<ConfigurationError>("weft: mesh ", describe(), " has no axis \"", name, "\": name one that it has");
  }
  constexpr bool has_axis(std::string_view name) const {
    for (auto const& own : names_)
      if (own == name) return true;
    return false;
  }
  constexpr int extent(std::string_view name) const { return extents_[axis(name)]; }

  constexpr Coordinates coordinates(int rank) const {
    check_rank(rank);
    Coordinates result{};
    for (std::size_t i = NumAxes; i-- > 0; rank /= extents_[i]) result[i] = rank % extents_[i];
    return result;
  }
  constexpr int coordinate(int rank, std::string_view name) const { return coordinates(rank)[axis(name)]; }

  constexpr int rank(Coordinates const& coordinates) const {
    int rank = 0;
    for (std::size_t i = 0; i < NumAxes; ++i) {
      if (coordinates[i] < 0 || coordinates[i] >= extents_[i])
        fail<ConfigurationError>("weft: mesh ", describe(), " has no coordinate ", coordinates[i], " on axis \"",
                                 names_[i], "\": coordinates count from 0 to ", extents_[i] - 1);
      rank = rank * extents_[i] + coordinates[i];
    }
    return rank;
  }

  // The ranks that differ from this one on the named axes alone, itself among them, in rising order. Over several axes
  // it is their product, whatever the order in which they are named.
  template <std::convertible_to<std::string_view>... AxisNames>
  constexpr std::vector<int> group(int rank, AxisNames const&... axis_names) const {
    return group_over(rank, chosen(axis_names...));
  }

  // The place of rank in its group.
  template <std::convertible_to<std::string_view>... AxisNames>
  constexpr int group_rank(int rank, AxisNames const&... axis_names) const {
    auto const axes = chosen(axis_names...);
    auto const place = coordinates(rank);
    int result = 0;
    for (std::size_t i = 0; i < NumAxes; ++i)
      if (axes[i]) result = result * extents_[i] + place[i];
    return result;
  }

  // Every group once, in the order of their first ranks: the order in which all ranks create them.
  template <std::convertible_to<std::string_view>... AxisNames>
  constexpr std::vector<std::vector<int>> groups(AxisNames const&... axis_names) const {
    auto const axes = chosen(axis_names...);
    std::vector<std::vector<int>> result;
    for (int rank = 0; rank < world(); ++rank)
      if (auto members = group_over(rank, axes); members.front() == rank) result.push_back(std::move(members));
    return result;
  }

  // "data_parallel 2 x tensor_parallel 4"
  std::string describe() const { return describe(names_, extents_); }
  static std::string describe(Names const& names, Coordinates const& extents) {
    std::string text;
    for (std::size_t i = 0; i < NumAxes; ++i) {
      text += (i == 0 ? "" : " x ");
      text += std::string(names[i]) + ' ' + (extents[i] == Infer ? "Infer" : std::to_string(extents[i]));
    }
    return text;
  }

 private:
  using Chosen = std::array<bool, NumAxes>;

  constexpr void check_rank(int rank) const {
    if (rank < 0 || rank >= world())
      fail<ConfigurationError>("weft: mesh ", describe(), " has no rank ", rank, ": ranks count from 0 to ",
                               world() - 1);
  }
  template <class... AxisNames>
  constexpr Chosen chosen(AxisNames const&... axis_names) const {
    Chosen axes{};
    ((axes[axis(axis_names)] = true), ...);
    return axes;
  }
  constexpr std::vector<int> group_over(int rank, Chosen const& axes) const {
    auto const own = coordinates(rank);
    std::vector<int> result;
    for (int other = 0; other < world(); ++other) {
      auto const place = coordinates(other);
      bool together = true;
      for (std::size_t i = 0; i < NumAxes; ++i) together = together && (axes[i] || place[i] == own[i]);
      if (together) result.push_back(other);
    }
    return result;
  }

  Names names_;
  Coordinates extents_;
};

namespace plan {

// The extents with Infer replaced. There is a whole number for it, which resolve() has seen to.
template <class M>
constexpr auto resolved_extents(int num_ranks) {
  auto extents = M::extents();
  for (int& extent : extents)
    if (extent == Infer) extent = num_ranks / M::known_product;
  return extents;
}

template <class M, int NumRanks>
struct AssertResolves {
  static_assert(M::num_axes != 0, "weft: Mesh<> has no axes: write Mesh<Axis<\"data_parallel\", Infer>>");
  static_assert(M::num_axes == 0 || M::is_known || NumRanks % M::known_product == 0,
                "weft: the number of ranks is no multiple of the extents of the mesh: change one of them, or write "
                "Infer for another axis");
  static_assert(M::num_axes == 0 || !M::is_known || NumRanks == M::known_product,
                "weft: the extents of the mesh do not make the number of ranks: change one of them, or write Infer for "
                "one axis");
  static constexpr bool value = true;
};

}  // namespace plan

// The grid of a mesh on so many ranks; known when the program runs. Never another mesh than the one written.
template <class M>
constexpr auto resolve(int num_ranks) -> Grid<M::num_axes> {
  static_assert(M::check());
  static_assert(M::num_axes != 0, "weft: Mesh<> has no axes: write Mesh<Axis<\"data_parallel\", Infer>>");
  using G = Grid<M::num_axes>;
  if (num_ranks < 1)
    fail<ConfigurationError>("weft: mesh ", G::describe(M::names(), M::extents()), " on ", num_ranks,
                             " ranks: start at least one");
  if (M::is_known && num_ranks != M::known_product)
    fail<ConfigurationError>("weft: mesh ", G::describe(M::names(), M::extents()), " has ", M::known_product,
                             " ranks, but there are ", num_ranks, ": start ", M::known_product,
                             " ranks, or write Infer for one axis");
  if (num_ranks % M::known_product != 0)
    fail<ConfigurationError>("weft: mesh ", G::describe(M::names(), M::extents()), " needs a multiple of ",
                             M::known_product, " ranks, but there are ", num_ranks,
                             ": change their number or an extent");
  return {M::names(), plan::resolved_extents<M>(num_ranks)};
}

// The same, known to the compiler.
template <class M, int NumRanks>
consteval auto resolve() -> Grid<M::num_axes> {
  static_assert(NumRanks >= 1, "weft: a mesh needs at least one rank");
  if constexpr (!M::valid)
    static_assert(M::check());
  else
    static_assert(core::Reported<plan::AssertResolves<M, NumRanks>>);
  return {M::names(), plan::resolved_extents<M>(NumRanks)};
}

}  // namespace weft
