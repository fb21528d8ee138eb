#include "ranks.hpp"

#include <weft/report/allocator.hpp>

using namespace test;
using weft::report::MemoryCount;

TEST_CASE("all_gather_into and reduce_scatter_into take as much memory as they say", "[comm]") {
  for (int world : {2, 4}) {
    auto const [gather, reduce] = on_ranks(world, [](Run<>& fabric) {
      auto& ranks = *fabric.session().world;
      int64_t const count = 50000;
      auto const part = at::ones({count});
      auto whole = at::ones({count * ranks.size()}), sum = at::empty({count});
      MemoryCount const memory;
      ranks.all_gather_into(whole, part);
      auto const gather = memory.all().peak_bytes;
      memory.reset_peaks();
      ranks.reduce_scatter_into(sum, whole);
      return std::pair(gather, memory.all().peak_bytes);
    });
    CHECK(gather == 0);
    CHECK(reduce ==
          static_cast<std::size_t>(world - 2) * 50000 * 4);  // one of the others' parts is received in the result
  }
}
