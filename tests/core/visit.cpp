#include <catch2/catch_all.hpp>

#include <weft/core/visit.hpp>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace {

struct Leaf {
  int value = 0;
};
struct Batch {
  Leaf data;
  std::vector<Leaf> targets;
  std::string label;
};
template <class F>
void weft_visit(Batch& batch, F&& f) {
  f(batch.data);
  f(batch.targets);
  f(batch.label);
}
struct Closed {
  Leaf leaf;
};
struct ThreeMembers {  // looks like an example, and is more than one
  Leaf data, target, mask;
};

// As torch::data::Example is written.
template <class Data, class Target>
struct Example {
  using DataType = Data;
  using TargetType = Target;
  Data data;
  Target target;
};
template <class Data>
struct Example<Data, void> {
  using DataType = Data;
  using TargetType = void;
  Data data;
};
struct Item {  // as torch::OrderedDict<std::string, Leaf>::Item is
  std::string const& key() const { return key_; }
  Leaf& value() { return value_; }
  Leaf const& value() const { return value_; }
  std::string key_;
  Leaf value_;
};

template <class T>
std::vector<int> leaves(T&& value) {
  std::vector<int> found;
  weft::for_each_leaf<Leaf>(value, [&](Leaf const& leaf) { found.push_back(leaf.value); });
  return found;
}
using Found = std::vector<int>;

}  // namespace

TEST_CASE("leaves are found in containers, in order", "[core]") {
  CHECK(leaves(Leaf{1}) == Found{1});
  CHECK(leaves(std::vector<Leaf>{{1}, {2}}) == Found{1, 2});
  CHECK(leaves(std::array<Leaf, 2>{{{1}, {2}}}) == Found{1, 2});
  CHECK(leaves(std::pair{Leaf{1}, 2.5}) == Found{1});
  CHECK(leaves(std::tuple{Leaf{1}, std::string("x"), std::optional{Leaf{2}}, true}) == Found{1, 2});
  CHECK(leaves(std::optional<Leaf>{}) == Found{});
  CHECK(leaves(std::map<std::string, Leaf>{{"b", {2}}, {"a", {1}}}) == Found{1, 2});
  CHECK(leaves(std::unordered_map<int, std::vector<Leaf>>{{1, {{1}, {2}}}}) == Found{1, 2});
  CHECK(leaves(std::make_shared<Leaf>(Leaf{1})) == Found{1});
  CHECK(leaves(std::make_unique<std::vector<Leaf>>(2)) == Found{0, 0});
  CHECK(leaves(std::shared_ptr<Leaf>{}) == Found{});
  CHECK(leaves(std::vector<Item>{{"a", {1}}, {"b", {2}}}) == Found{1, 2});
  CHECK(leaves(std::vector<bool>{true}) == Found{});
  CHECK(leaves(3) == Found{});
  CHECK(leaves("text") == Found{});
}

TEST_CASE("examples of torch::data are walked", "[core]") {
  CHECK(leaves(Example<Leaf, Leaf>{{1}, {2}}) == Found{1, 2});
  CHECK(leaves(Example<std::vector<Leaf>, int>{{{1}, {2}}, 3}) == Found{1, 2});
  CHECK(leaves(std::vector<Example<Leaf, void>>{{{1}}, {{2}}}) == Found{1, 2});
}

TEST_CASE("a struct of one's own is walked by its weft_visit", "[core]") {
  Batch batch{{1}, {{2}, {3}}, "x"};
  CHECK(leaves(batch) == Found{1, 2, 3});
  CHECK(leaves(std::as_const(batch)) == Found{1, 2, 3});
  CHECK(leaves(std::vector<Batch>{batch, batch}) == Found{1, 2, 3, 1, 2, 3});
}

TEST_CASE("leaves can be changed, those of a const value cannot", "[core]") {
  std::map<std::string, std::vector<Batch>> nested{{"a", {Batch{{1}, {{2}}, ""}}}};
  weft::for_each_leaf<Leaf>(nested, [](Leaf& leaf) { leaf.value *= 10; });
  CHECK(leaves(nested) == Found{10, 20});
  auto are_const = [](auto const& value) {
    bool all = true;
    weft::for_each_leaf<Leaf>(
        value, [&](auto& leaf) { all = all && std::is_const_v<std::remove_reference_t<decltype(leaf)>>; });
    return all;
  };
  CHECK(are_const(nested));
  CHECK(are_const(std::make_shared<Leaf>()));
  CHECK(are_const(Example<Leaf, Leaf>{}));
}

TEST_CASE("what cannot be walked is known beforehand", "[core]") {
  STATIC_REQUIRE(weft::is_visitable_v<Leaf, std::vector<std::optional<Batch>> const&>);
  STATIC_REQUIRE_FALSE(weft::is_visitable_v<Leaf, Closed>);
  STATIC_REQUIRE_FALSE(weft::is_visitable_v<Leaf, std::vector<std::pair<int, Closed>>>);
  STATIC_REQUIRE_FALSE(weft::is_visitable_v<Leaf, ThreeMembers>);
  STATIC_REQUIRE_FALSE(weft::is_visitable_v<Leaf, Leaf*>);
}
