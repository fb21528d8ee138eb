#include <catch2/catch_all.hpp>

#include <algorithm>
#include <string>

#include <weft/shard/layout.hpp>

using namespace weft::shard;
using Sizes = std::vector<int64_t>;

namespace {

// [Note: one element at a time] What layout.hpp says in closed form, counted here: a list with one entry for each
// element.
struct Element {
  std::size_t parameter = 0;
  int64_t at = 0;
};

std::vector<Element> elements_of(Sizes const& numels) {
  std::vector<Element> elements;
  for (std::size_t parameter = 0; parameter < numels.size(); ++parameter)
    for (int64_t at = 0; at < numels[parameter]; ++at) elements.push_back({parameter, at});
  return elements;
}

// Every list of so many extents from 0 to largest.
std::vector<Sizes> all_lists(std::size_t length, int64_t largest) {
  std::vector<Sizes> lists{{}};
  for (std::size_t i = 0; i < length; ++i) {
    std::vector<Sizes> longer;
    for (auto const& list : lists)
      for (int64_t next = 0; next <= largest; ++next) {
        longer.push_back(list);
        longer.back().push_back(next);
      }
    lists = std::move(longer);
  }
  return lists;
}

// The first thing about a layout that counting contradicts, or nothing.
std::string wrong_with(Sizes const& numels, int num_ranks) {
  auto const elements = elements_of(numels);
  auto const total = static_cast<int64_t>(elements.size());
  int64_t padded = total;
  while (padded % num_ranks != 0) ++padded;
  auto const chunk = padded / num_ranks;

  Layout const layout(numels, num_ranks);
  if (layout.size() != numels.size() || layout.num_ranks() != num_ranks) return "size";
  if (layout.total() != total || layout.padded() != padded || layout.chunk() != chunk) return "chunks";
  if (layout.padding() != padded - total || layout.padding() < 0 || layout.padding() > num_ranks - 1) return "padding";
  for (std::size_t parameter = 0; parameter < numels.size(); ++parameter) {
    if (layout.numel(parameter) != numels[parameter]) return "numel";
    auto const before = std::count_if(elements.begin(), elements.end(),
                                      [&](auto& e) { return e.parameter < parameter; });
    if (layout.offset(parameter) != before) return "offset";
    int64_t next = 0;  // the ranks' ranges follow one another, also the empty ones
    for (int rank = 0; rank < num_ranks; ++rank) {
      Sizes kept, places;
      for (int64_t i = rank * chunk; i < std::min(total, (rank + 1) * chunk); ++i)
        if (auto const& element = elements[static_cast<std::size_t>(i)]; element.parameter == parameter) {
          kept.push_back(element.at);
          places.push_back(i - rank * chunk);
        }
      auto const range = layout.range(parameter, rank);
      if (range.begin != next || range.size() != static_cast<int64_t>(kept.size())) return "range";
      if (range.empty() != kept.empty() || (!kept.empty() && range.begin != kept.front())) return "range";
      if (layout.place(parameter, rank) != (places.empty() ? 0 : places.front())) return "place";
      next = range.end;
    }
    if (next != numels[parameter]) return "ranges end early";
  }
  return {};
}

}  // namespace

TEST_CASE("a layout is what counting finds: every list of up to three small sizes, worlds 1 to 9", "[shard]") {
  for (std::size_t length : {0, 1, 2, 3})
    for (auto const& numels : all_lists(length, 7))
      for (int num_ranks = 1; num_ranks <= 9; ++num_ranks) {
        INFO("sizes " << Catch::Detail::stringify(numels) << " on " << num_ranks);
        REQUIRE(wrong_with(numels, num_ranks) == "");
      }
}

TEST_CASE("a layout is what counting finds: lists of four sizes, worlds 1 to 9", "[shard]") {
  auto lists = all_lists(4, 3);
  lists.insert(
      lists.end(),
      {{7, 0, 0, 7}, {0, 0, 0, 1}, {1, 0, 0, 0}, {60, 1, 59, 3}, {1, 1, 1, 1}, {0, 13, 0, 17}, {101, 60, 1, 0}});
  for (auto const& numels : lists)
    for (int num_ranks = 1; num_ranks <= 9; ++num_ranks) {
      INFO("sizes " << Catch::Detail::stringify(numels) << " on " << num_ranks);
      REQUIRE(wrong_with(numels, num_ranks) == "");
    }
}

TEST_CASE("empty ranges lie at the parameter's nearer end", "[shard]") {
  Layout const layout({5, 4, 2}, 3);
  CHECK(layout.range(2, 0) == Range{0, 0});
  CHECK(layout.range(0, 2) == Range{5, 5});
  CHECK(layout.range(1, 1) == Range{0, 3});
  CHECK(layout.place(1, 1) == 1);
  CHECK(layout.place(0, 2) == 0);
}

TEST_CASE("a layout of more elements than fit 32 bits", "[shard]") {
  int64_t const many = int64_t{3} << 32;
  Layout const layout({many, many, 1}, 7);
  CHECK(layout.total() == 2 * many + 1);
  CHECK(layout.padded() % 7 == 0);
  CHECK(layout.padding() < 7);
  CHECK(layout.range(2, 6) == Range{0, 1});
  CHECK(layout.place(2, 6) == 2 * many - 6 * layout.chunk());
}

TEST_CASE("an address is a multiple of its alignment, and of no larger one up to 64", "[shard]") {
  for (std::size_t element_bytes : {1, 2, 4, 8})
    for (int64_t element = 0; element <= 200; ++element) {
      std::size_t largest = 1;
      for (std::size_t power = 1; power <= 64; power *= 2)
        if (static_cast<std::size_t>(element) * element_bytes % power == 0) largest = power;
      REQUIRE(alignment_bytes(element, element_bytes) == largest);
    }
}

TEST_CASE("the compiler knows a layout", "[shard]") {
  STATIC_REQUIRE(Layout({}, 3).padded() == 0);
  STATIC_REQUIRE(Layout({}, 3).chunk() == 0);
  STATIC_REQUIRE(Layout({0, 0}, 2).range(1, 1).empty());
  STATIC_REQUIRE(Layout({5, 4, 2}, 3).chunk() == 4);
  STATIC_REQUIRE(Layout({5, 4, 2}, 3).padding() == 1);
  STATIC_REQUIRE(Layout({5, 4, 2}, 3).offset(2) == 9);
  STATIC_REQUIRE(Layout({5, 4, 2}, 3).range(1, 2) == Range{3, 4});
  STATIC_REQUIRE(Layout({5, 4, 2}, 3).place(2, 2) == 1);
  STATIC_REQUIRE(Layout({1}, 4).range(0, 3) == Range{1, 1});
  STATIC_REQUIRE(alignment_bytes(Layout({5, 4, 2}, 3).offset(1), 4) == 4);
  STATIC_REQUIRE(alignment_bytes(Layout({64, 64}, 3).offset(1), 2) == 64);
}
