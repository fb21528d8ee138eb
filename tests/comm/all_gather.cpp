#include "ranks.hpp"

#include <weft/report/allocator.hpp>

using namespace test;

namespace {

at::Tensor part_of(int rank, int64_t count, at::ScalarType type, int64_t salt = 0) {
  return (at::arange(count, at::kLong).remainder(5) + 10 * rank + salt).to(type);
}
at::Tensor whole_of(int world, int64_t count, at::ScalarType type, int64_t salt = 0) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < world; ++rank) parts.push_back(part_of(rank, count, type, salt));
  return at::cat(parts);
}

}  // namespace

TEST_CASE("all_gather_into has all parts in rank order for every dtype and size", "[comm]") {
  for (int world : {1, 2, 3, 4}) {
    INFO("world " << world);
    CHECK(on_ranks(world, [](Run<>& fabric) {
      auto& ranks = *fabric.session().world;
      for (auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kShort, at::kByte, at::kChar, at::kBool, at::kComplexFloat})
        for (int64_t count : {0, 1, 7, 1000, 300000}) {
          if (count > 1000 && type != at::kFloat) continue;
          auto output = at::zeros({count * ranks.size()}, type);
          ranks.all_gather_into(output, part_of(ranks.rank(), count, type));
          expect(output.equal(whole_of(ranks.size(), count, type)), c10::str(type, ", ", count, " elements"));
          auto inside = at::zeros({ranks.size(), count}, type);  // the input where it belongs
          inside[ranks.rank()].copy_(part_of(ranks.rank(), count, type));
          ranks.all_gather_into(inside, inside[ranks.rank()]);
          expect(inside.view({-1}).equal(output), c10::str("in place: ", type, ", ", count, " elements"));
        }
      return true;
    }));
  }
}

TEST_CASE("all_gather_into: many under way, waited for in any order, beside reductions", "[comm]") {
  CHECK(on_ranks(3, [](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    std::vector<weft::comm::Pending> gathers, reductions;
    std::vector<at::Tensor> wholes, sums;
    for (int64_t i = 0; i < 20; ++i) {
      int64_t const count = 1 + i * 997;
      wholes.push_back(at::zeros({3 * count}));
      sums.push_back(at::zeros({count}));
      gathers.push_back(ranks.all_gather_into_async(wholes.back(), part_of(ranks.rank(), count, at::kFloat, i)));
      reductions.push_back(ranks.reduce_scatter_into_async(sums.back(), at::full({3 * count}, static_cast<double>(i))));
    }
    for (std::size_t i = 20; i-- > 0;) {
      gathers[i].wait();
      reductions[(i + 7) % 20].wait();
      expect(wholes[i].equal(whole_of(3, 1 + static_cast<int64_t>(i) * 997, at::kFloat, static_cast<int64_t>(i))), c10::str("gather ", i));
      expect(sums[(i + 7) % 20].eq(3.0 * static_cast<double>((i + 7) % 20)).all().item<bool>(), c10::str("sum ", i));
    }
    return true;
  }));
}

TEST_CASE("all_gather_into takes no memory of its own", "[comm]") {
  CHECK(on_ranks(4, [](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    auto const part = part_of(ranks.rank(), 50000, at::kFloat);
    auto whole = at::zeros({200000});
    weft::report::MemoryCount const memory;
    ranks.all_gather_into(whole, part);
    return memory.all().peak_bytes;
  }) == 0);
}
