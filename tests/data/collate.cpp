#include "test.hpp"

#include <weft/data/collate.hpp>

#include <array>
#include <map>
#include <unordered_map>

using Catch::Matchers::ContainsSubstring;
using weft::data::collate;

namespace {

at::Tensor numbers(std::vector<double> const& values, at::ScalarType dtype) {
  return torch::tensor(values, at::kDouble).to(dtype);
}
bool same(at::Tensor const& a, at::Tensor const& b) { return a.scalar_type() == b.scalar_type() && a.equal(b); }

enum class Colour : std::uint8_t { red = 3, blue = 7 };

// A struct of tensors is its own batch.
struct Pair {
  at::Tensor left;
  std::vector<at::Tensor> right;
};
template <class F>
void weft_visit(Pair& pair, F&& f) {
  f(pair.left), f(pair.right);
}

// Others name it.
struct Samples {
  at::Tensor images, labels;
  std::vector<std::string> names;
  std::tuple<at::Tensor, at::Tensor> box;
  Pair pair;
};
template <class F>
void weft_visit(Samples& batch, F&& f) {
  f(batch.images), f(batch.labels), f(batch.names), f(batch.box), f(batch.pair);
}
struct Sample {
  using Batch = Samples;
  at::Tensor image;
  int label;
  std::string name;
  std::tuple<float, bool> box;
  Pair pair;
};
template <class F>
void weft_visit(Sample& sample, F&& f) {
  f(sample.image), f(sample.label), f(sample.name), f(sample.box), f(sample.pair);
}

struct ShortBatch {
  at::Tensor one;
};
template <class F>
void weft_visit(ShortBatch& batch, F&& f) {
  f(batch.one);
}
template <bool MemberMore>
struct Wrong {
  using Batch = ShortBatch;
  std::string one = "text";
  int two = 2;
};
template <class F>
void weft_visit(Wrong<false>& sample, F&& f) {
  f(sample.one);
}
template <class F>
void weft_visit(Wrong<true>& sample, F&& f) {
  f(sample.two), f(sample.one);
}

}  // namespace

// dtypes as torch.utils.data.default_collate([...]) of Python's bool, int and float have them, but that C++ knows
// float32, too.
TEST_CASE("numbers become a tensor, strings a list", "[data]") {
  CHECK(same(collate(std::vector{1, 2, 3}), numbers({1, 2, 3}, at::kLong)));
  CHECK(same(collate(std::vector<std::uint8_t>{200, 0}), numbers({200, 0}, at::kLong)));
  CHECK(same(collate(std::vector{1.5f, -2.f}), numbers({1.5, -2}, at::kFloat)));
  CHECK(same(collate(std::vector{1e-300, 2.}), torch::tensor({1e-300, 2.}, at::kDouble)));
  CHECK(same(collate(std::vector{true, false}), numbers({1, 0}, at::kBool)));
  CHECK(same(collate(std::vector{Colour::blue, Colour::red}), numbers({7, 3}, at::kLong)));
  CHECK(collate(std::vector<std::string>{"a", ""}) == std::vector<std::string>{"a", ""});
  CHECK(same(collate(std::vector<std::vector<float>>{{1, 2}, {3, 4}, {5, 6}}),
             numbers({1, 2, 3, 4, 5, 6}, at::kFloat).view({3, 2})));
  CHECK(
      same(collate(std::vector<std::array<short, 2>>{{1, 2}, {3, 4}}), numbers({1, 2, 3, 4}, at::kLong).view({2, 2})));
  CHECK(same(collate(std::vector<std::vector<bool>>{{true}, {false}}), numbers({1, 0}, at::kBool).view({2, 1})));
  CHECK(collate(std::vector<std::vector<int>>{{}, {}}).sizes() == at::IntArrayRef({2, 0}));
}

TEST_CASE("tensors are stacked, whatever is around them stays", "[data]") {
  auto const a = torch::arange(3), b = torch::arange(3, 6), stacked = torch::arange(6).view({2, 3});
  CHECK(collate(std::vector{a, b}).equal(stacked));
  CHECK(collate(std::vector{torch::tensor(1), torch::tensor(2)}).equal(torch::tensor({1, 2})));

  auto const pair = collate(std::vector{std::pair(a, 1), std::pair(b, 2)});
  STATIC_REQUIRE(std::is_same_v<decltype(pair), std::pair<at::Tensor, at::Tensor> const>);
  CHECK(pair.first.equal(stacked));
  CHECK(pair.second.equal(torch::tensor({1, 2})));

  auto const tuple = collate(std::vector{std::tuple(a, std::string("x"), std::array{a, b}),
                                         std::tuple(b, std::string("y"), std::array{b, a})});
  CHECK(std::get<0>(tuple).equal(stacked));
  CHECK(std::get<1>(tuple) == std::vector<std::string>{"x", "y"});
  CHECK(std::get<2>(tuple)[1].equal(stacked.flip({0})));

  std::vector<std::map<std::string, at::Tensor>> maps{{{"x", a}, {"y", b}}, {{"x", b}, {"y", a}}};
  auto const map = collate(maps);
  CHECK(map.size() == 2);
  CHECK(map.at("x").equal(stacked));
  CHECK(collate(std::vector<std::unordered_map<int, int>>{{{1, 5}}, {{1, 6}}}).at(1).equal(torch::tensor({5, 6})));

  auto const lists = collate(std::vector<std::vector<at::Tensor>>{{a, b}, {b, a}});
  CHECK(lists.size() == 2);
  CHECK(lists[0].equal(stacked));

  CHECK(collate(std::vector<std::optional<int>>{1, 2})->equal(torch::tensor({1, 2})));
  CHECK_FALSE(collate(std::vector<std::optional<int>>(2)).has_value());

  auto const example =
      collate(std::vector{torch::data::Example<at::Tensor, int>(a, 7), torch::data::Example<at::Tensor, int>(b, 8)});
  STATIC_REQUIRE(std::is_same_v<decltype(example), torch::data::Example<> const>);
  CHECK(example.target.equal(torch::tensor({7, 8})));
}

TEST_CASE("a user's struct is stacked member by member", "[data]") {
  auto const a = torch::arange(2), b = torch::arange(2, 4), stacked = torch::arange(4).view({2, 2});
  Pair const pair = collate(std::vector<Pair>{{a, {a, b}}, {b, {b, a}}});
  CHECK(pair.left.equal(stacked));
  CHECK(pair.right.at(1).equal(stacked.flip({0})));

  Samples const batch =
      collate(std::vector<Sample>{{a, 4, "first", {0.5f, true}, {a, {a}}}, {b, 5, "second", {1.5f, false}, {b, {b}}}});
  CHECK(batch.images.equal(stacked));
  CHECK(batch.labels.equal(torch::tensor({4, 5})));
  CHECK(batch.names == std::vector<std::string>{"first", "second"});
  CHECK(std::get<0>(batch.box).equal(torch::tensor({0.5, 1.5}, at::kFloat)));
  CHECK(batch.pair.right.at(0).equal(stacked));
}

TEST_CASE("samples that are unlike are refused with which and what", "[data]") {
  auto const of = [](int64_t size) { return torch::zeros({size}); };
  CHECK_THROWS_WITH(collate(std::vector{of(3), of(3), of(4)}),
                    ContainsSubstring("sample 2 of the batch has a tensor of shape [4], the first has [3]"));
  CHECK_THROWS_WITH(collate(std::vector<std::vector<int>>{{1}, {1, 2}}),
                    ContainsSubstring("sample 1 of the batch has a list of 2, the first has 1"));
  CHECK_THROWS_WITH(collate(std::vector<std::optional<int>>{1, {}}),
                    ContainsSubstring("an optional without a value, the first has one with"));
  CHECK_THROWS_WITH((collate(std::vector<std::map<std::string, int>>{{{"x", 1}}, {{"y", 1}}})),
                    ContainsSubstring("sample 1 of the batch has no key x, the first has"));
  CHECK_THROWS_WITH((collate(std::vector<std::map<std::string, int>>{{}, {{"y", 1}}})),
                    ContainsSubstring("a map of 1, the first has 0"));
  CHECK_THROWS_AS(collate(std::vector{of(3), of(4)}), weft::DataError);
  CHECK_THROWS_WITH(collate(std::vector<std::optional<int>>()), ContainsSubstring("there are no samples"));
  CHECK_THROWS_WITH(collate(std::vector<Wrong<false>>(2)), ContainsSubstring("member 0 of the batch") &&
                                                               ContainsSubstring("strings a std::vector<std::string>"));
  CHECK_THROWS_WITH(collate(std::vector<Wrong<true>>(2)),
                    ContainsSubstring("samples have 2 members, and their batch 1"));
}
