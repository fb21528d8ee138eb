#include "ranks.hpp"

#include <thread>

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::ReduceOp;

namespace {

/// Small whole numbers, exact in every dtype: what rank `rank` contributes at each position.
at::Tensor contribution(int rank, int64_t count, at::ScalarType type) {
  return (at::arange(count, at::kLong).remainder(5) + rank + 1).to(type);
}
at::Tensor expected_part(int rank, int world, int64_t count, at::ScalarType type, ReduceOp op) {
  auto const position = at::arange(rank * count, (rank + 1) * count, at::kLong).remainder(5);
  auto result = position + 1;
  for (int other = 1; other < world; ++other) {
    auto const next = position + other + 1;
    result = op == ReduceOp::sum       ? result + next
             : op == ReduceOp::product ? result * next
             : op == ReduceOp::min     ? at::minimum(result, next)
                                       : at::maximum(result, next);
  }
  return result.to(type);
}
/// One rank goes on when another got somewhere, without a collective and without a clock.
void reached(Run<>& fabric, std::string const& place) {
  fabric.session().endpoint.store->set(place, std::vector<uint8_t>{1});
}
void wait_until(Run<>& fabric, std::string const& place) {
  fabric.session().endpoint.store->wait({place}, std::chrono::seconds(20));
}

c10::intrusive_ptr<c10d::Work> issue(weft::comm::Communicator& ranks, at::Tensor output, at::Tensor input) {
  return ranks.backend()->_reduce_scatter_base(output, input, c10d::ReduceScatterOptions());
}

}  // namespace

TEST_CASE("reduce_scatter equals a formula for every dtype, size and operation", "[comm][reduce_scatter]") {
  for (int world : {1, 2, 3, 4}) {
    INFO("world " << world);
    CHECK(on_ranks(world, [](Run<>& fabric) {
      auto& ranks = *fabric.session().world;
      for (auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte, at::kChar})
        for (int64_t count : {0, 1, 7, 1000})
          for (auto op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
            if (op == ReduceOp::product && (type == at::kByte || type == at::kChar)) continue;  // overflows
            auto const input = contribution(ranks.rank(), count * ranks.size(), type);
            auto const before = input.clone();
            auto output = at::full({count}, 77, input.options());
            ranks.reduce_scatter_into(output, input, op);
            auto const expected = expected_part(ranks.rank(), ranks.size(), count, type, op);
            expect(output.equal(expected), c10::str(type, ", ", count, " elements, operation ", static_cast<int>(op)));
            expect(input.equal(before), "the input stays");
          }
      auto average = at::empty({3});
      ranks.reduce_scatter_into(average, contribution(ranks.rank(), 3 * ranks.size(), at::kFloat), ReduceOp::average);
      expect(relative_difference(average, expected_part(ranks.rank(), ranks.size(), 3, at::kFloat, ReduceOp::sum) /
                                              ranks.size()) < 1e-6,
             "the average");
      // Longer than a piece, and not a multiple of it; then into this rank's own part of the input, and into another's.
      int64_t const count = weft::comm::GlooBackend::piece_bytes / 4 * 2 + 13;
      auto const input = contribution(ranks.rank(), count * ranks.size(), at::kFloat);
      auto const expected = expected_part(ranks.rank(), ranks.size(), count, at::kFloat, ReduceOp::sum);
      auto output = at::empty({count});
      ranks.reduce_scatter_into(output, input);
      expect(output.equal(expected), "a long chunk in pieces");
      for (int shift : {0, 1}) {
        auto const whole = input.clone();
        auto const inside = whole.narrow(0, (ranks.rank() + shift) % ranks.size() * count, count);
        ranks.reduce_scatter_into(inside, whole);
        expect(inside.equal(expected), "an output inside of the input");
      }
      return true;
    }));
  }
}

TEST_CASE("reduce_scatter adds in rank order: the same bits in every run", "[comm][reduce_scatter]") {
  auto const run = [] {
    return on_ranks(4, [](Run<>& fabric) {
      auto& ranks = *fabric.session().world;
      std::vector<at::Tensor> inputs;
      for (int rank = 0; rank < 4; ++rank) {
        torch::manual_seed(static_cast<uint64_t>(rank));
        inputs.push_back(at::randn({4 * 10001}) * std::pow(10.0, rank));
      }
      auto output = at::empty({10001});
      for (int repeat = 0; repeat < 20; ++repeat) {
        ranks.reduce_scatter_into(output, inputs[static_cast<std::size_t>(ranks.rank())]);
        auto sum = inputs[0] + inputs[1] + inputs[2] + inputs[3];
        expect(output.equal(sum.narrow(0, ranks.rank() * 10001, 10001)), "the sum in rank order");
      }
      return output;
    });
  };
  CHECK(run().equal(run()));
}

TEST_CASE("reduce_scatter: many under way among other collectives, waited for in any order", "[comm][reduce_scatter]") {
  CHECK(on_ranks(3, [](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    for (bool const backwards : {false, true}) {
      std::vector<weft::comm::Pending> pending;
      std::vector<at::Tensor> outputs, sums;
      for (int i = 0; i < 12; ++i) {
        int64_t const count = i % 3 == 0 ? 300000 : 10 + i;
        outputs.push_back(at::empty({count}));
        sums.push_back(at::full({5}, ranks.rank() + 1.0));
        pending.push_back(
            ranks.reduce_scatter_into_async(outputs.back(), contribution(ranks.rank(), 3 * count, at::kFloat) + i));
        pending.push_back(ranks.all_reduce_async(sums.back()));
      }
      for (std::size_t i = 0; i < pending.size(); ++i) pending[backwards ? pending.size() - 1 - i : i].wait();
      for (int i = 0; i < 12; ++i) {
        auto const& output = outputs[static_cast<std::size_t>(i)];
        expect(output.equal(expected_part(ranks.rank(), 3, output.numel(), at::kFloat, ReduceOp::sum) + 3 * i),
               "the reduced part");
        expect(sums[static_cast<std::size_t>(i)].eq(6).all().item<bool>(), "the all-reduced value");
      }
    }
    return true;
  }));
}

TEST_CASE("all_gather equals a formula, into another tensor and in place", "[comm][all_gather]") {
  for (int world : {1, 2, 3, 4}) {
    INFO("world " << world);
    CHECK(on_ranks(world, [](Run<>& fabric) {
      auto& ranks = *fabric.session().world;
      for (auto type : {at::kFloat, at::kBFloat16, at::kLong, at::kShort})
        for (int64_t count : {0, 1, 7, 1000, 300001}) {
          std::vector<at::Tensor> all;
          for (int rank = 0; rank < ranks.size(); ++rank) all.push_back(contribution(rank, count, type));
          auto const expected = at::cat(all);
          auto const own = all[static_cast<std::size_t>(ranks.rank())];
          auto output = at::full({ranks.size(), count}, 77, own.options());
          ranks.all_gather_into(output, own);
          expect(output.view({-1}).equal(expected), c10::str(type, ", ", count, " elements"));
          auto whole = at::full({ranks.size() * count}, 77, own.options());
          whole.narrow(0, ranks.rank() * count, count).copy_(own);
          ranks.all_gather_into(whole, whole.narrow(0, ranks.rank() * count, count));
          auto other = whole.clone();
          auto const elsewhere = other.narrow(0, (ranks.rank() + 1) % ranks.size() * count, count);
          elsewhere.copy_(own);
          ranks.all_gather_into(other, elsewhere);
          expect(other.equal(expected), "the input in another rank's slot");
          expect(whole.equal(expected), c10::str("in place: ", type, ", ", count, " elements"));
        }
      std::vector<weft::comm::Pending> pending;
      std::vector<at::Tensor> outputs;
      for (int i = 0; i < 6; ++i) {
        outputs.push_back(at::empty({ranks.size(), 50000}));
        pending.push_back(ranks.all_gather_into_async(outputs.back(), at::full({50000}, ranks.rank() + i, at::kFloat)));
      }
      for (std::size_t i = pending.size(); i-- > 0;) pending[i].wait();
      for (int i = 0; i < 6; ++i)
        for (int rank = 0; rank < ranks.size(); ++rank)
          expect(outputs[static_cast<std::size_t>(i)][rank].eq(rank + i).all().item<bool>(), "several under way");
      return true;
    }));
  }
}

TEST_CASE("exchanges are issued without waiting for the others", "[comm][reduce_scatter][all_gather]") {
  CHECK(on_ranks(2, [](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    auto part = at::empty({1 << 20}), whole = at::empty({1 << 21});
    if (ranks.rank() == 1) wait_until(fabric, "both issued");
    auto sum = ranks.reduce_scatter_into_async(part, at::ones({1 << 21}));
    auto gathered = ranks.all_gather_into_async(whole, at::ones({1 << 20}));
    if (ranks.rank() == 0) reached(fabric, "both issued");
    sum.wait();
    gathered.wait();
    expect(part.eq(2).all().item<bool>() && whole.eq(1).all().item<bool>(), "the values");
    return true;
  }));
}

TEST_CASE("reduce_scatter's work: waited for twice, by another thread, by asking, or never", "[comm][reduce_scatter]") {
  CHECK(on_ranks(2, [](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    auto const input = contribution(ranks.rank(), 200000, at::kFloat);
    auto const expected = expected_part(ranks.rank(), 2, 100000, at::kFloat, ReduceOp::sum);
    auto output = at::empty({100000});
    {
      auto const work = issue(ranks, output, input);
      std::thread([&] { work->wait(); }).join();
      expect(work->isCompleted() && work->wait() && output.equal(expected), "another thread waits, then this one");
    }
    {
      output.zero_();
      auto const work = issue(ranks, output, input);
      std::thread other([&] { work->wait(); });
      work->wait();
      expect(output.equal(expected), "two wait at once");
      other.join();
    }
    {
      output.zero_();
      if (ranks.rank() == 1) wait_until(fabric, "asked");
      auto const work = issue(ranks, output, input);
      if (ranks.rank() == 0) {
        expect(!work->isCompleted(), "the other has not sent yet");
        reached(fabric, "asked");
      }
      while (!work->isCompleted()) std::this_thread::yield();
      expect(output.equal(expected), "asking is enough");
    }
    {
      output.zero_();
      auto const work = issue(ranks, output, input);
      bool heard = false;
      work->getFuture()->addCallback([&heard, &work, &output, &expected](c10::ivalue::Future&) {
        heard = work->wait() && work->getFuture()->completed() && output.equal(expected);
      });
      work->wait();
      expect(heard, "who hears that it is done may ask again");
    }
    for (int repeat = 0; repeat < 20; ++repeat) {  // nobody waits, and memory goes back when the data is here
      auto dropped = at::empty({100000});
      issue(ranks, dropped, input);
    }
    output.zero_();
    ranks.reduce_scatter_into(output, input);
    expect(output.equal(expected), "later calls are not disturbed");
    ranks.barrier();
    return true;
  }));
}

TEST_CASE("reduce_scatter leaves send and receive of other callers alone, and the recorder sees one event",
          "[comm][reduce_scatter]") {
  auto const lines = on_ranks(2, [](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    int const peer = 1 - ranks.rank();
    std::vector<at::Tensor> sent{at::full({4}, ranks.rank() + 0.0)}, received{at::empty({4})};
    auto const receive = ranks.backend()->recv(received, peer, 0);
    auto output = at::empty({3});
    fabric.recorder().start();
    ranks.reduce_scatter_into(output, contribution(ranks.rank(), 6, at::kFloat));
    std::vector<std::string> lines;
    for (auto const& event : fabric.recorder().stop())
      lines.push_back(std::string(name_of(event.kind)) + " " + std::to_string(event.bytes));
    auto const send = ranks.backend()->send(sent, peer, 0);
    receive->wait();
    send->wait();
    expect(received[0].eq(peer).all().item<bool>(), "the peer's message");
    expect(output.equal(expected_part(ranks.rank(), 2, 3, at::kFloat, ReduceOp::sum)), "the sum");
    return lines;
  });
  CHECK(lines == std::vector<std::string>{"reduce_scatter 24"});
}

TEST_CASE("what Gloo cannot reduce is refused, with call, axis and rank", "[comm][reduce_scatter]") {
  auto const message = on_ranks(2, [](Run<>& fabric) {
    auto& ranks = *fabric.session().world;
    return message_of([&] { ranks.reduce_scatter_into(at::empty({2}, at::kShort), at::ones({4}, at::kShort)); });
  });
  CHECK_THAT(message, ContainsSubstring("weft: reduce_scatter_into on axis world, rank 0 of 2: "));
}

TEST_CASE("a peer that dies or never comes fails reduce_scatter with call, axis and rank", "[comm][reduce_scatter]") {
  auto const dies = GENERATE(true, false);
  auto const start = std::chrono::steady_clock::now();
  auto const outcome = Run<>::launch({.devices = 3, .collective_timeout = std::chrono::milliseconds(700)},
                                     [dies](Run<>& fabric) {
                                       auto& ranks = *fabric.session().world;
                                       ranks.barrier();
                                       if (ranks.rank() == 2) {
                                         std::this_thread::sleep_for(std::chrono::milliseconds(100));
                                         if (dies) ::_exit(3);
                                         for (;;) ::pause();
                                       }
                                       auto output = at::empty({1000});
                                       ranks.reduce_scatter_into(output, at::ones({3000}));
                                     });
  REQUIRE(!outcome);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  std::string messages;
  for (auto const& failure : outcome.failures()) messages += failure.message + "\n";
  CHECK_THAT(messages, ContainsSubstring("weft: reduce_scatter_into on axis world, rank ") &&
                           ContainsSubstring(" of 3, call 1: "));
  if (dies)
    CHECK_THAT(outcome.failures().front().message,
               ContainsSubstring("rank 2 of 3") && ContainsSubstring("exited with code 3"));
}
