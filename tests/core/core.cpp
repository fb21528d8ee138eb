#include <catch2/catch_all.hpp>

#include <weft/core/diagnose.hpp>
#include <weft/core/error.hpp>
#include <weft/core/fixed_string.hpp>
#include <weft/core/type_list.hpp>

using namespace weft;
using core::TypeList;

namespace {

template <core::FixedString Name>
struct Labelled {
  static constexpr auto name = Name;
};
template <class T>
struct IsBig : std::bool_constant<(sizeof(T) > 1)> {};

}  // namespace

TEST_CASE("text is part of a type", "[core]") {
  STATIC_REQUIRE(Labelled<"shard">::name.view() == "shard");
  STATIC_REQUIRE(Labelled<"shard">::name.size() == 5);
  STATIC_REQUIRE(Labelled<"">::name.empty());
  STATIC_REQUIRE(std::is_same_v<Labelled<"a">, Labelled<"a">>);
  STATIC_REQUIRE_FALSE(std::is_same_v<Labelled<"a">, Labelled<"b">>);
  STATIC_REQUIRE(core::FixedString{"a"} == core::FixedString{"a"});
  STATIC_REQUIRE_FALSE(core::FixedString{"a"} == core::FixedString{"ab"});
}

TEST_CASE("names compare without case", "[core]") {
  STATIC_REQUIRE(core::equal_ignoring_case("FSDP", "fsdp"));
  STATIC_REQUIRE_FALSE(core::equal_ignoring_case("ddp", "fsdp"));
  CHECK(core::equal_ignoring_case(std::string("DdP"), "dDp"));
  CHECK_FALSE(core::equal_ignoring_case("ddp", "dd_"));
}

TEST_CASE("lists of types are filtered, joined and counted", "[core]") {
  using List = TypeList<char, int, long, char>;
  STATIC_REQUIRE(List::size == 4);
  STATIC_REQUIRE(List::contains<long>);
  STATIC_REQUIRE_FALSE(List::contains<float>);
  STATIC_REQUIRE(List::count<IsBig> == 2);
  STATIC_REQUIRE(std::is_same_v<core::filter_t<IsBig, List>, TypeList<int, long>>);
  STATIC_REQUIRE(std::is_same_v<core::filter_t<IsBig, TypeList<>>, TypeList<>>);
  STATIC_REQUIRE(
      std::is_same_v<core::concat_t<TypeList<int>, TypeList<>, TypeList<char, int>>, TypeList<int, char, int>>);
  STATIC_REQUIRE(std::is_same_v<core::concat_t<>, TypeList<>>);
  STATIC_REQUIRE(std::is_same_v<core::first_or_t<List, float>, char>);
  STATIC_REQUIRE(std::is_same_v<core::first_or_t<TypeList<>, float>, float>);
  STATIC_REQUIRE(std::is_same_v<core::unique_t<List>, TypeList<char, int, long>>);
  std::size_t bytes = 0;
  TypeList<char, std::int32_t>::for_each([&](auto type) { bytes += sizeof(typename decltype(type)::type); });
  CHECK(bytes == 5);
}

TEST_CASE("a type has a readable name", "[core]") {
  STATIC_REQUIRE(core::type_name<int>() == "int");
  STATIC_REQUIRE(core::type_name<weft::Error>() == "weft::Error");
  CHECK(core::type_name<double>() == "double");
}

TEST_CASE("an error is a kind and a sentence", "[core]") {
  STATIC_REQUIRE(std::is_base_of_v<Error, ConfigurationError>);
  STATIC_REQUIRE(std::is_base_of_v<std::runtime_error, Error>);
  CHECK_THROWS_MATCHES(
      fail<LaunchError>("weft: rank ", 1, " of ", 4u, ": ", std::string("it "), std::string_view("ended"), ", ", true),
      LaunchError, Catch::Matchers::Message("weft: rank 1 of 4: it ended, true"));
  CHECK_THROWS_AS(fail<CheckpointError>("weft: "), Error);
}
