#include <catch2/catch_all.hpp>

#include <weft/plan/plan.hpp>

using namespace weft;

namespace {

struct Linear {};
struct BlockImpl {
  Linear w1;
  Linear w2;
};
struct Block {};

}  // namespace

TEST_CASE("a style names a member or a path", "[plan]") {
  using ByMember = Colwise<&BlockImpl::w1>;
  using ByPath = Colwise<"layers.*.w1">;
  STATIC_REQUIRE(ByMember::target == &BlockImpl::w1);
  STATIC_REQUIRE(ByPath::target.view() == "layers.*.w1");
  STATIC_REQUIRE(plan::is_path_v<std::remove_const_t<decltype(ByPath::target)>>);
  STATIC_REQUIRE_FALSE(plan::is_path_v<std::remove_const_t<decltype(ByMember::target)>>);
  STATIC_REQUIRE_FALSE(std::is_same_v<Colwise<&BlockImpl::w1>, Colwise<&BlockImpl::w2>>);
  STATIC_REQUIRE_FALSE(std::is_same_v<Colwise<"w1">, Colwise<"w2">>);
}

TEST_CASE("a plan keeps its block and its rules", "[plan]") {
  using P = Plan<Block, Colwise<&BlockImpl::w1>, Rowwise<"w2">>;
  STATIC_REQUIRE(std::is_same_v<P::block, Block>);
  STATIC_REQUIRE(P::rules::size == 2);
  STATIC_REQUIRE(is_of_v<P, category::plan>);
}
