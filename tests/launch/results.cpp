#include "ranks.hpp"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <weft/launch/transfer.hpp>

namespace {

struct Curve {
  std::string name;
  std::vector<double> losses;
};
template <class F>
void weft_visit(Curve& curve, F&& f) {
  f(curve.name);
  f(curve.losses);
}

struct Report {
  int steps = 0;
  at::Tensor weights;
  std::optional<Curve> best;
  std::map<std::string, Curve> curves;
  std::vector<Curve> none;
};
template <class F>
void weft_visit(Report& report, F&& f) {
  f(report.steps);
  f(report.weights);
  f(report.best);
  f(report.curves);
  f(report.none);
}

/// Hands on a member only where it is there.
struct Changing {
  bool has_name = false;
  std::string name;
};
template <class F>
void weft_visit(Changing& changing, F&& f) {
  f(changing.has_name);
  if (changing.has_name) f(changing.name);
}

Report report_of(int rank) {
  return {rank + 3, at::full({2, 3}, rank + 0.5), Curve{"best", {1, 2}}, {{"a", {"first", {3}}}, {"b", {}}}, {}};
}
bool equal(Report const& a, Report const& b) {
  auto const same = [](Curve const& x, Curve const& y) { return x.name == y.name && x.losses == y.losses; };
  return a.steps == b.steps && a.weights.equal(b.weights) && a.best.has_value() == b.best.has_value() &&
         (!a.best || same(*a.best, *b.best)) && a.curves.size() == b.curves.size() &&
         same(a.curves.at("a"), b.curves.at("a")) && same(a.curves.at("b"), b.curves.at("b")) && a.none.empty() &&
         b.none.empty();
}

}  // namespace

TEST_CASE("NEW-23: a launched function returns a struct with weft_visit, and containers of it", "[launch][known]") {
  for (int world : {1, 2, 3}) {
    CHECK(equal(test::on_ranks(world, [](test::Run<>& fabric) { return report_of(fabric.global_rank()); }),
                report_of(0)));
    auto const many = test::on_ranks(
        world, [](test::Run<>& fabric) { return std::vector<Report>{report_of(fabric.global_rank()), report_of(7)}; });
    REQUIRE(many.size() == 2);
    CHECK(equal(many[0], report_of(0)));
    CHECK(equal(many[1], report_of(7)));
  }
}

TEST_CASE("NEW-23: such a struct is broadcast, too", "[launch][known]") {
  CHECK(test::on_ranks(3, [](test::Run<>& fabric) {
    return fabric.all_of(equal(fabric.broadcast(report_of(fabric.global_rank()), 2), report_of(2)));
  }));
}

TEST_CASE("NEW-23: a struct that does not hand on the same members always is an error, not another value",
          "[launch][known]") {
  using weft::launch::from_bytes, weft::launch::to_bytes;
  CHECK_FALSE(from_bytes<Changing>(to_bytes(Changing{})).has_name);
  CHECK_THROWS_WITH(
      from_bytes<Changing>(to_bytes(Changing{true, "weft"})),
      Catch::Matchers::ContainsSubstring("has 2 members by its weft_visit, and 1 where it has just been"));
}
