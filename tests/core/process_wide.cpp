#include <catch2/catch_all.hpp>

#include <string>
#include <thread>
#include <vector>

#include <weft/core/hash.hpp>
#include <weft/core/process_wide.hpp>

using namespace weft::core;

TEST_CASE("state of a process is one object for a type, and one thread at a time is in it", "[core]") {
  struct Counts : std::vector<int> {};
  struct Others : std::vector<int> {};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([] {
      for (int i = 0; i < 10000; ++i) process_wide<Counts>([&](Counts& counts) { counts.push_back(i); });
    });
  for (auto& thread : threads) thread.join();
  CHECK(process_wide<Counts>([](Counts& counts) { return counts.size(); }) == 40000);
  CHECK(process_wide<Others>([](Others& others) { return others.size(); }) == 0);
}

TEST_CASE("FNV-1a gives the published values", "[core]") {
  auto const hash_of = [](std::string_view text) {
    Hash hash;
    hash.add(text);
    return hash.value();
  };
  // draft-eastlake-fnv, appendix C
  CHECK(hash_of("") == 0xcbf29ce484222325u);
  CHECK(hash_of("a") == 0xaf63dc4c8601ec8cu);
  CHECK(hash_of("foobar") == 0x85944171f73967e8u);
  STATIC_REQUIRE([] {
    Hash hash;
    hash.add("foo");
    hash.add("bar");
    return hash.value();
  }() == 0x85944171f73967e8u);
}
