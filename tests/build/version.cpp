// The version in numbers and the version in text are one version.
#include <weft/version.hpp>

#include <catch2/catch_all.hpp>

#include <string>

TEST_CASE("the version text is made of the version numbers", "[build]") {
  STATIC_REQUIRE(weft::version == "0.1.0");
  CHECK(std::string(weft::version) == std::to_string(WEFT_VERSION_MAJOR) + "." + std::to_string(WEFT_VERSION_MINOR) +
                                          "." + std::to_string(WEFT_VERSION_PATCH));
}
