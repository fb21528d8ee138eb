#include "models.hpp"

using namespace test;

namespace {

auto const stack = [] { return Stack(); };
using Blocks = weft::WrapPolicy<Block>;

template <class Strategy, class Description>
void compare(Description description, Training const& t = {}) {
  auto const reference = train<weft::SingleDevice>(1, stack, description, t);
  for (int world : {1, 2, 3, 4}) {
    INFO("world " << world);
    check_equal(train<Strategy>(world, stack, description, t), reference);
  }
}

}  // namespace

TEST_CASE("FSDP equals one process: losses, gradient norms, gradients, weights; worlds 1 to 4", "[shard]") {
  SECTION("full shard, SGD with momentum") {
    compare<weft::FSDP<weft::FullShard, Blocks>>(weft::SGD{.lr = 0.1, .momentum = 0.9});
  }
  SECTION("full shard, a unit a bucket, AdamW") {
    compare<weft::FSDP<weft::FullShard, Blocks, weft::Bucket<1>>>(weft::AdamW{.lr = 1e-2});
  }
  SECTION("full shard, accumulating") {
    compare<weft::FSDP<weft::FullShard, Blocks, weft::Bucket<1>>>(weft::SGD{.lr = 0.1}, {.accumulate = 3});
  }
  SECTION("full shard, accumulating into shards") {
    compare<weft::FSDP<weft::FullShard, Blocks, weft::AccumulateSharded>>(weft::SGD{.lr = 0.1}, {.accumulate = 3});
  }
  SECTION("shard-grad-op") {
    compare<weft::FSDP<weft::ShardGradOp, Blocks, weft::Bucket<1>>>(weft::AdamW{.lr = 1e-2}, {.accumulate = 2});
  }
  SECTION("no-shard") { compare<weft::FSDP<weft::NoShard, Blocks>>(weft::AdamW{.lr = 1e-2}, {.accumulate = 2}); }
  SECTION("one unit") { compare<weft::FSDP<>>(weft::SGD{.lr = 0.1}); }
  SECTION("prefetching three, at most two") {
    compare<weft::FSDP<weft::FullShard, Blocks, weft::Bucket<1>, weft::Prefetch<3>, weft::RateLimit<2>>>(
        weft::SGD{.lr = 0.1});
  }
}
