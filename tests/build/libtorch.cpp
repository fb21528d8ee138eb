// The dependency hands out a LibTorch that weft can stand on.
#include "test.hpp"

TEST_CASE("LibTorch is 2.11 or newer", "[build]") {
  STATIC_REQUIRE(TORCH_VERSION_MAJOR * 1000 + TORCH_VERSION_MINOR >= 2011);
}

TEST_CASE("Gloo's c10d backend is visible to every file that uses the dependency", "[build]") {
#if defined(USE_C10D_GLOO)
  STATIC_REQUIRE(std::is_base_of_v<c10d::Backend, c10d::ProcessGroupGloo>);
#else
  FAIL("the build dependency must define USE_C10D_GLOO");
#endif
}

TEST_CASE("strings cross the border to LibTorch", "[build]") {
  // A wrong string ABI already fails to link here.
  CHECK(c10::str("weft ", 1) == "weft 1");
  CHECK(torch::ones({2, 2}).sum().item<double>() == 4.0);
}
