#include <catch2/catch_all.hpp>

#include <weft/plan/mesh.hpp>

#include <weft/plan/grid.hpp>

using namespace weft;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

using TwoD = Mesh<Axis<"data_parallel", 2>, Axis<"tensor_parallel", Infer>>;
using Known = Mesh<Axis<"replicate", 2>, Axis<"shard", 3>>;
using ThreeD = Mesh<Axis<"a", 2>, Axis<"b", Infer>, Axis<"c", 2>>;
using Ranks = std::vector<int>;

}  // namespace

TEST_CASE("a mesh knows its axes", "[plan]") {
  STATIC_REQUIRE(TwoD::num_axes == 2);
  STATIC_REQUIRE(TwoD::names()[0] == "data_parallel");
  STATIC_REQUIRE(TwoD::extents()[1] == Infer);
  STATIC_REQUIRE(TwoD::has_axis("tensor_parallel"));
  STATIC_REQUIRE_FALSE(TwoD::has_axis("shard"));
  STATIC_REQUIRE_FALSE(TwoD::is_known);
  STATIC_REQUIRE(TwoD::world == 0);
  STATIC_REQUIRE(Known::is_known);
  STATIC_REQUIRE(Known::world == 6);
  STATIC_REQUIRE_FALSE(Mesh<>::is_known);
}

TEST_CASE("a mesh that makes no sense is no mesh", "[plan]") {
  STATIC_REQUIRE_FALSE(Mesh<Axis<"a", 0>>::valid);
  STATIC_REQUIRE_FALSE(Mesh<Axis<"a", -3>>::valid);
  STATIC_REQUIRE_FALSE(Mesh<Axis<"a">, Axis<"b">>::valid);
  STATIC_REQUIRE_FALSE(Mesh<Axis<"a", 2>, Axis<"a", 2>>::valid);
  STATIC_REQUIRE_FALSE(Mesh<Axis<"a", 2>, int>::valid);
  STATIC_REQUIRE(Mesh<Axis<"a">>::valid);
}

// TP2-10: the axes keep the order in which they were written.
TEST_CASE("the last axis varies fastest", "[plan]") {
  constexpr auto grid = resolve<TwoD, 8>();
  STATIC_REQUIRE(grid.extents() == std::array{2, 4});
  STATIC_REQUIRE(grid.world() == 8);
  STATIC_REQUIRE(grid.coordinates(6) == std::array{1, 2});
  STATIC_REQUIRE(grid.rank({1, 2}) == 6);
  STATIC_REQUIRE(grid.coordinate(6, "tensor_parallel") == 2);

  auto at_run_time = resolve<TwoD>(8);
  CHECK(at_run_time == grid);
  CHECK(at_run_time.groups("tensor_parallel") == std::vector<Ranks>{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(at_run_time.groups("data_parallel") == std::vector<Ranks>{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  CHECK(at_run_time.group(5, "data_parallel") == Ranks{1, 5});
  CHECK(at_run_time.group_rank(5, "data_parallel") == 1);
  CHECK(at_run_time.group_rank(5, "tensor_parallel") == 1);
  CHECK(at_run_time.describe() == "data_parallel 2 x tensor_parallel 4");
}

TEST_CASE("axes unite into groups of several", "[plan]") {
  auto grid = resolve<ThreeD>(12);
  CHECK(grid.extents() == std::array{2, 3, 2});
  CHECK(grid.group(0, "b") == Ranks{0, 2, 4});
  CHECK(grid.group(7, "a", "c") == Ranks{0, 1, 6, 7});
  CHECK(grid.group(7, "c", "a") == grid.group(7, "a", "c"));
  CHECK(grid.group_rank(7, "a", "c") == 3);
  CHECK(grid.group(7) == Ranks{7});
  CHECK(grid.groups("a", "b", "c").size() == 1);
  CHECK(grid.groups("a", "b", "c")[0].size() == 12);
}

TEST_CASE("every rank is in one group of each kind, at its place", "[plan]") {
  for (int world : {4, 8, 12, 16}) {
    auto grid = resolve<ThreeD>(world);
    for (int rank = 0; rank < world; ++rank) CHECK(grid.rank(grid.coordinates(rank)) == rank);
    for (auto const& kind : {grid.groups("a"), grid.groups("b"), grid.groups("c"), grid.groups("b", "c")}) {
      Ranks seen(static_cast<std::size_t>(world));
      for (auto const& members : kind)
        for (int rank : members) ++seen[static_cast<std::size_t>(rank)];
      CHECK(seen == Ranks(static_cast<std::size_t>(world), 1));
    }
    for (int rank = 0; rank < world; ++rank) {
      auto place = static_cast<std::size_t>(grid.group_rank(rank, "b", "c"));
      CHECK(grid.group(rank, "b", "c")[place] == rank);
    }
  }
}

TEST_CASE("one rank is a mesh", "[plan]") {
  auto grid = resolve<Mesh<Axis<"data_parallel", Infer>, Axis<"tensor_parallel", 1>>>(1);
  CHECK(grid.extents() == std::array{1, 1});
  CHECK(grid.group(0, "data_parallel") == Ranks{0});
}

// TP2-09: a mesh is the one that was asked for, or an error; never a flat one instead.
TEST_CASE("a mesh that does not multiply out is an error that names axes and ranks", "[plan]") {
  using TwoByTwo = Mesh<Axis<"replicate", 2>, Axis<"shard", 2>>;
  CHECK(resolve<TwoByTwo>(4).extents() == std::array{2, 2});
  CHECK_THROWS_MATCHES(
      resolve<TwoByTwo>(6), ConfigurationError,
      MessageMatches(ContainsSubstring("mesh replicate 2 x shard 2 has 4 ranks, but there are 6: start 4 ranks")));
  CHECK_THROWS_AS(resolve<TwoByTwo>(2), ConfigurationError);
  using Inferred = Mesh<Axis<"data_parallel", Infer>, Axis<"tensor_parallel", 4>>;
  CHECK_THROWS_MATCHES(resolve<Inferred>(6), ConfigurationError,
                       MessageMatches(ContainsSubstring("data_parallel Infer x tensor_parallel 4 needs a multiple of 4 "
                                                        "ranks, but there are 6")));
  CHECK_THROWS_AS(resolve<Inferred>(2), ConfigurationError);
  CHECK_THROWS_AS(resolve<Inferred>(0), ConfigurationError);
}

TEST_CASE("what is not in the mesh is an error that says what is", "[plan]") {
  auto grid = resolve<Known>(6);
  CHECK_THROWS_MATCHES(grid.group(0, "tensor_parallel"), ConfigurationError,
                       MessageMatches(ContainsSubstring("replicate 2 x shard 3 has no axis \"tensor_parallel\"")));
  CHECK_THROWS_MATCHES(grid.coordinates(6), ConfigurationError, MessageMatches(ContainsSubstring("from 0 to 5")));
  CHECK_THROWS_AS(grid.coordinates(-1), ConfigurationError);
  CHECK_THROWS_MATCHES(grid.rank({0, 3}), ConfigurationError, MessageMatches(ContainsSubstring("axis \"shard\"")));
}
