// same.hpp -- two runs that have to agree to the bit.
// In: what each of them gave, as lists of tensors. Out: a failed check for each tensor that differs.
#pragma once

#include "test.hpp"

#include <vector>

namespace test {

inline void check_same(std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("tensor " << i);
    CHECK(a[i].equal(b[i]));
  }
}

}  // namespace test
