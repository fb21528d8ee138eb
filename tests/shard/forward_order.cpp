#include <catch2/catch_all.hpp>

#include <weft/shard/forward_order.hpp>

using weft::shard::ForwardOrder;
using Buckets = ForwardOrder::Buckets;

namespace {

// A forward that runs these inside of bucket 0, and where it left the record.
std::optional<std::size_t> run(ForwardOrder& order, Buckets const& inner) {
  order.begin();
  auto differs = order.enter(0);
  for (auto const bucket : inner) {
    auto const at = order.enter(bucket);
    if (!differs) differs = at;
    order.leave(bucket);
  }
  order.leave(0);
  order.end();
  return differs;
}
Buckets forward(ForwardOrder const& order, std::size_t count) {
  Buckets next;
  order.ahead_in_forward(count, [&](std::size_t bucket) { next.push_back(bucket); });
  return next;
}
Buckets backward(ForwardOrder const& order, std::size_t bucket, std::size_t count) {
  Buckets next;
  order.ahead_in_backward(bucket, count, [&](std::size_t other) { next.push_back(other); });
  return next;
}

}  // namespace

TEST_CASE("the first forward records, the next ones know what comes", "[shard]") {
  ForwardOrder order;
  order.begin();
  order.enter(0);
  CHECK(forward(order, 2).empty());
  CHECK_FALSE(run(order, {1, 2, 3}));
  CHECK(order.recorded() == Buckets{0, 1, 2, 3});
  order.begin();
  CHECK_FALSE(order.enter(0));
  CHECK(forward(order, 2) == Buckets{1, 2});
  CHECK_FALSE(order.enter(1));
  CHECK_FALSE(order.enter(1));  // units of one bucket
  CHECK(forward(order, 5) == Buckets{2, 3});
  CHECK(forward(order, 0).empty());
  // Backward enters what forward left last, the root first.
  CHECK(backward(order, 0, 2) == Buckets{3, 2});
  CHECK(backward(order, 2, 2) == Buckets{1});
  CHECK(backward(order, 7, 2).empty());
}

TEST_CASE("a forward in another order is told once, gathers nothing ahead, and is recorded", "[shard]") {
  ForwardOrder order;
  run(order, {1, 2, 3});
  CHECK(run(order, {2, 1, 3}) == std::size_t{1});
  CHECK(order.recorded() == Buckets{0, 2, 1, 3});
  CHECK_FALSE(run(order, {2, 1, 3}));
  CHECK(run(order, {2, 1, 3, 4}) == std::size_t{1});  // taken for a second round of the units
}

TEST_CASE("units that run again and again begin anew behind the root", "[shard]") {
  ForwardOrder order;
  run(order, {1, 2});
  order.begin();
  for (auto const bucket : {0, 1, 2, 1, 2}) CHECK_FALSE(order.enter(static_cast<std::size_t>(bucket)));
  CHECK(order.entered() == Buckets{0, 1, 2});
}
