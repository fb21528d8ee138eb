#include "ranks.hpp"

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::ReduceOp;

namespace {

/// Values that differ by rank and position.
at::Tensor values(int rank, std::vector<int64_t> sizes, at::ScalarType type = at::kFloat) {
  int64_t count = 1;
  for (auto size : sizes) count *= size;
  return (at::arange(count, at::kDouble) + 100 * (rank + 1)).reshape(sizes).to(type);
}

}  // namespace

TEST_CASE("collectives on several ranks give what one process computes", "[comm]") {
  for (int world : {1, 2, 3, 4}) {
    INFO("world " << world);
    auto const result = on_ranks(world, [](Run<>& fabric) {
      auto& ranks = *fabric.session().world;
      auto const mine = values(ranks.rank(), {2, 3});
      std::vector<at::Tensor> out;
      for (auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max}) {
        auto tensor = mine.clone();
        ranks.all_reduce(tensor, op);
        out.push_back(tensor);
      }
      auto gathered = at::empty({ranks.size(), 2, 3});
      ranks.all_gather_into(gathered, mine);
      out.push_back(gathered);
      auto const whole = values(ranks.rank(), {ranks.size(), 3});
      auto part = at::empty({3});
      ranks.reduce_scatter_into(part, whole);
      auto parts = at::empty({ranks.size(), 3});
      ranks.all_gather_into(parts, part);
      out.push_back(parts);
      auto sent = mine.clone();
      ranks.broadcast(sent, ranks.size() - 1);
      out.push_back(sent);
      ranks.barrier();
      return out;
    });
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < world; ++rank) all.push_back(values(rank, {2, 3}));
    auto const stacked = at::stack(all);
    CHECK(result[0].equal(stacked.sum(0)));
    CHECK(relative_difference(result[1], stacked.mean(0)) < 1e-6);
    CHECK(result[2].equal(stacked.amin(0)));
    CHECK(result[3].equal(stacked.amax(0)));
    CHECK(result[4].equal(stacked));
    auto sum = at::zeros({world, 3});
    for (int rank = 0; rank < world; ++rank) sum += values(rank, {world, 3});
    CHECK(result[5].equal(sum));
    CHECK(result[6].equal(stacked[world - 1]));
  }
}

TEST_CASE("product, and a non-contiguous tensor whose neighbors stay", "[comm]") {
  auto const [product, strided] = on_ranks(2, [](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    auto product = at::tensor({2.0f + ranks.rank(), 5.0f});
    ranks.all_reduce(product, ReduceOp::product);
    auto matrix = values(ranks.rank(), {3, 2});
    ranks.all_reduce(matrix.select(1, 0), ReduceOp::sum);
    return std::pair(product, matrix);
  });
  CHECK(product.equal(at::tensor({6.0f, 25.0f})));
  CHECK(strided.select(1, 0).equal(values(0, {3, 2}).select(1, 0) + values(1, {3, 2}).select(1, 0)));
  CHECK(strided.select(1, 1).equal(values(0, {3, 2}).select(1, 1)));
}

TEST_CASE("handles: several collectives under way, waited for in any order", "[comm]") {
  auto const ok = on_ranks(3, [](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    std::vector<weft::comm::Pending> pending;
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 8; ++i) {
      tensors.push_back(at::full({1000}, ranks.rank() + i, at::kFloat));
      pending.push_back(ranks.all_reduce_async(tensors.back(), i % 2 == 0 ? ReduceOp::sum : ReduceOp::average));
    }
    for (std::size_t i = pending.size(); i-- > 0;) pending[i].wait();
    for (int i = 0; i < 8; ++i)
      expect(tensors[static_cast<std::size_t>(i)].eq(i % 2 == 0 ? 3 + 3 * i : 1 + i).all().item<bool>(),
             "the reduced value");
    {
      auto const dropped = ranks.all_reduce_async(tensors[0].clone());  // keeps its tensor, and waits when it goes
    }
    auto moved = ranks.all_reduce_async(tensors[1]);
    auto other = std::move(moved);
    moved.wait();  // nothing left to wait for
    other.wait();
    return true;
  });
  CHECK(ok);
}

TEST_CASE("errors name the call, the axis and the rank", "[comm]") {
  auto const messages = on_ranks(2, [](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    std::vector<std::string> messages;
    messages.push_back(message_of([&] { ranks.all_reduce(at::ones({2}, at::kLong), ReduceOp::average); }));
    messages.push_back(message_of([&] { ranks.all_gather_into(at::empty({3}), at::empty({2})); }));
    messages.push_back(message_of([&] { ranks.all_gather_into(at::empty({4}, at::kDouble), at::empty({2})); }));
    messages.push_back(message_of([&] { ranks.reduce_scatter_into(at::empty({2}), at::empty({2, 4}).select(1, 0)); }));
    messages.push_back(message_of([&] { ranks.broadcast(at::empty({2}), 2); }));
    return messages;
  });
  CHECK_THAT(messages[0],
             ContainsSubstring("all_reduce on axis world, rank 0 of 2: an average of Long would have to round"));
  CHECK_THAT(messages[1], ContainsSubstring("the whole has 3 elements, expected 4 (2 ranks times 2)"));
  CHECK_THAT(messages[2], ContainsSubstring("output is Double, input is Float"));
  CHECK_THAT(messages[3], ContainsSubstring("the whole has 2 elements, expected 4"));
  CHECK_THAT(messages[4], ContainsSubstring("source 2 is not a rank of the group; write 0 to 1"));
}

TEST_CASE("a rank that ends during a collective ends the job, named first", "[comm][launch]") {
  auto const end = GENERATE(0, 1, 2);
  auto const message = failure_on_ranks(4, [end](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    for (int i = 0; i < 20; ++i) {
      if (ranks.rank() == 2 && i == 10) {
        if (end == 0) throw std::runtime_error("out of coffee");
        if (end == 1) ::_exit(3);
        ::signal(SIGKILL, SIG_DFL);
        ::raise(SIGKILL);
      }
      ranks.all_reduce(at::ones({1 << 16}));
    }
  });
  CHECK_THAT(message, ContainsSubstring("rank 2 of 4") && ContainsSubstring(end == 0   ? "out of coffee"
                                                                            : end == 1 ? "exited with code 3"
                                                                                       : "signal 9"));
}

TEST_CASE("a rank that throws with a collective under way is heard, though the others never join it",
          "[comm][launch]") {
  auto const message = failure_on_ranks(3, [](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    if (ranks.rank() != 1)
      for (;;) ::pause();
    auto const tensor = at::ones({1 << 16});
    auto const pending = ranks.all_reduce_async(tensor);
    throw std::runtime_error("out of coffee");
  });
  CHECK_THAT(message, ContainsSubstring("rank 1 of 3 failed: out of coffee"));
}

TEST_CASE("the recorder sees every collective by phase, kind, group and bytes", "[comm]") {
  auto const lines = on_ranks(2, [](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    ranks.all_reduce(at::ones({4}));  // before start(): not recorded
    fabric.recorder().start();
    {
      auto const phase = fabric.phase("one");
      ranks.all_reduce(at::ones({4}));
      {
        auto const inner = fabric.phase("two");
        ranks.all_gather_into(at::empty({6}), at::ones({3}));
      }
      ranks.reduce_scatter_into(at::empty({3}), at::ones({6}));
    }
    ranks.broadcast(at::ones({5}, at::kLong));
    ranks.barrier();
    std::vector<std::string> lines;
    for (auto const& event : fabric.recorder().stop())
      lines.push_back(event.phase + " " + name_of(event.kind) + " " + std::to_string(event.group_size) + " " +
                      std::to_string(event.bytes));
    ranks.barrier();
    expect(fabric.recorder().stop().empty(), "nothing after stop()");
    return lines;
  });
  CHECK(lines == std::vector<std::string>{"one all_reduce 2 16", "two all_gather 2 24", "one reduce_scatter 2 24",
                                          "other broadcast 2 40", "other barrier 2 0"});
}

TEST_CASE("an event has the times at which it was issued and done", "[comm]") {
  using std::chrono::milliseconds;
  CHECK(on_ranks(2, [](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    fabric.recorder().start();
    ranks.all_reduce(at::ones({4}));
    ranks.all_gather_into(at::empty({6}), at::ones({3}));
    ranks.reduce_scatter_into(at::empty({3}), at::ones({6}));
    ranks.broadcast(at::ones({5}));
    ranks.all_to_all_into(at::empty({4}), at::ones({4}));
    ranks.barrier();
    auto const events = fabric.recorder().stop();
    expect(events.size() == 6, "six events");
    double last = 0;
    for (auto const& event : events) {
      expect(event.issued_us >= last, std::string(name_of(event.kind)) + " is issued after the last was done");
      expect(event.done_us >= event.issued_us, std::string(name_of(event.kind)) + " is done after it was issued");
      last = event.done_us;
    }

    // Rank 1 joins 30 ms after rank 0 has issued it.
    fabric.recorder().start();
    if (ranks.rank() == 0) {
      auto pending = ranks.all_reduce_async(at::ones({4}));
      ranks.send(at::ones({1}), 1);
      pending.wait();
    } else {
      ranks.receive_into(at::empty({1}), 0);
      std::this_thread::sleep_for(milliseconds(30));
      ranks.all_reduce(at::ones({4}));
    }
    auto const late = fabric.recorder().stop();
    expect(late.size() == 2, "two events");
    auto const& reduced = ranks.rank() == 0 ? late.front() : late.back();
    if (ranks.rank() == 0) expect(reduced.done_us - reduced.issued_us >= 30000, "the wait for rank 1 is in it");
    auto const& message = ranks.rank() == 0 ? late.back() : late.front();
    expect(message.done_us < 0, "nobody says when a message is through");

    // Under way when the recording ends: without an end.
    fabric.recorder().start();
    std::vector<weft::comm::Event> cut;
    if (ranks.rank() == 0) {
      auto pending = ranks.all_reduce_async(at::ones({4}));
      cut = fabric.recorder().stop();
      fabric.recorder().start();
      ranks.send(at::ones({1}), 1);
      pending.wait();
      expect(cut.size() == 1 && cut[0].done_us < 0, "not done yet");
      auto const other = fabric.recorder().stop();
      expect(other.size() == 1 && other[0].done_us < 0, "and no other recording hears of it");
    } else {
      ranks.receive_into(at::empty({1}), 0);
      ranks.all_reduce(at::ones({4}));
    }
    return true;
  }));
}

TEST_CASE("events are equal whatever their times", "[comm]") {
  weft::comm::Event const a{"one", weft::comm::Kind::all_reduce, 2, 16, 1, 2};
  auto b = a;
  b.issued_us = 5;
  b.done_us = -1;
  CHECK(a == b);
  b.bytes = 8;
  CHECK(a != b);
}

TEST_CASE("ring bytes follow the formulas", "[comm]") {
  using weft::comm::Kind;
  using weft::comm::ring_bytes;
  CHECK(ring_bytes(Kind::all_reduce, 4, 100) == 150);
  CHECK(ring_bytes(Kind::all_gather, 4, 100) == 75);
  CHECK(ring_bytes(Kind::reduce_scatter, 4, 100) == 75);
  CHECK(ring_bytes(Kind::broadcast, 4, 100) == 100);
  CHECK(ring_bytes(Kind::all_reduce, 1, 100) == 0);
  CHECK(ring_bytes(Kind::barrier, 4, 0) == 0);
}
