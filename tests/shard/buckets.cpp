#include <catch2/catch_all.hpp>

#include <weft/shard/buckets.hpp>

using namespace weft::shard;
using Buckets = std::vector<std::size_t>;

namespace {

constexpr std::vector<UnitSize> flat(std::initializer_list<std::size_t> blocks) {
  std::vector<UnitSize> units{{100, -1}};
  for (auto const bytes : blocks) units.push_back({bytes, 0});
  return units;
}

}  // namespace

TEST_CASE("the root travels alone", "[shard]") {
  CHECK(buckets({}, 1000).empty());
  CHECK(buckets(flat({}), 1000) == Buckets{0});
  CHECK(buckets(flat({1}), 1000) == Buckets{0, 1});
  CHECK(buckets(flat({1, 1, 1}), 1000) == Buckets{0, 1, 1, 1});
  CHECK(buckets({{0, -1}, {1, 0}, {1, 0}}, 1000) == Buckets{0, 1, 1});
}

TEST_CASE("a bucket is no larger than it may be, but for a unit that is larger alone", "[shard]") {
  CHECK(buckets(flat({10, 10, 10, 10}), 20) == Buckets{0, 1, 1, 2, 2});
  CHECK(buckets(flat({10, 10, 10, 10}), 19) == Buckets{0, 1, 2, 3, 4});
  CHECK(buckets(flat({10, 10, 10, 10}), 30) == Buckets{0, 1, 1, 1, 2});
  CHECK(buckets(flat({50, 10, 10, 50, 10}), 20) == Buckets{0, 1, 2, 2, 3, 4});
  CHECK(buckets(flat({15, 10, 5, 5}), 20) == Buckets{0, 1, 2, 2, 2});
}

TEST_CASE("a unit of no bytes joins the one before", "[shard]") {
  CHECK(buckets(flat({20, 0, 0, 1}), 20) == Buckets{0, 1, 1, 1, 2});
  CHECK(buckets(flat({50, 0}), 20) == Buckets{0, 1, 2});
}

TEST_CASE("a bucket of 0 bytes switches sharing off, also for units of no bytes", "[shard]") {
  CHECK(buckets(flat({10, 10}), 0) == Buckets{0, 1, 2});
  CHECK(buckets(flat({0, 0, 0}), 0) == Buckets{0, 1, 2, 3});
}

TEST_CASE("only siblings that follow one another share a bucket", "[shard]") {
  // root { a { x, y }, b, c { z } }
  CHECK(buckets({{1, -1}, {1, 0}, {1, 1}, {1, 1}, {1, 0}, {1, 0}, {1, 5}}, 1000) == Buckets{0, 1, 2, 2, 3, 3, 4});
  // root { a { b { c } } }
  CHECK(buckets({{1, -1}, {1, 0}, {1, 1}, {1, 2}}, 1000) == Buckets{0, 1, 2, 3});
  // root { a { x }, b { y } }: x and y are alike in everything but where they lie
  CHECK(buckets({{1, -1}, {1, 0}, {1, 1}, {1, 0}, {1, 3}}, 1000) == Buckets{0, 1, 2, 3, 4});
}

TEST_CASE("every list of small units: runs of neighbors, as long as they may be", "[shard]") {
  for (std::size_t code = 0; code < 4 * 4 * 4 * 4 * 4; ++code)
    for (std::size_t bucket_bytes = 1; bucket_bytes <= 7; ++bucket_bytes) {
      std::vector<std::size_t> blocks;
      for (std::size_t rest = code, i = 0; i < 5; ++i, rest /= 4) blocks.push_back(rest % 4 + 1);
      std::vector<UnitSize> units{{1, -1}};
      for (auto const bytes : blocks) units.push_back({bytes, 0});
      auto const found = buckets(units, bucket_bytes);
      REQUIRE(found.size() == units.size());
      std::vector<std::size_t> filled(units.size() + 1), members(units.size() + 1);
      bool in_order = found[0] == 0;
      for (std::size_t i = 0; i < units.size(); ++i) {
        filled[found[i]] += units[i].bytes;
        ++members[found[i]];
        in_order = in_order && (i == 0 || found[i] == found[i - 1] || found[i] == found[i - 1] + 1);
        // A new one only where the last one is full.
        if (i > 1 && found[i] != found[i - 1])
          in_order = in_order && filled[found[i - 1]] + units[i].bytes > bucket_bytes;
      }
      REQUIRE(in_order);
      REQUIRE(members[0] == 1);
      for (std::size_t i = 0; i < filled.size(); ++i) REQUIRE((members[i] <= 1 || filled[i] <= bucket_bytes));
    }
}

TEST_CASE("the compiler knows the buckets", "[shard]") {
  STATIC_REQUIRE(buckets(flat({10, 10, 10}), 20) == Buckets{0, 1, 1, 2});
  STATIC_REQUIRE(buckets(flat({10, 10, 10}), 0).back() == 3);
}
