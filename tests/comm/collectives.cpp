#include "ranks.hpp"

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::ReduceOp;

namespace {

auto const every_dtype = {at::kFloat,        at::kDouble,        at::kHalf,   at::kBFloat16,     at::kChar,
                          at::kByte,         at::kShort,         at::kInt,    at::kLong,         at::kBool,
                          at::kComplexFloat, at::kComplexDouble, at::kUInt16, at::kFloat8_e4m3fn};

/// Small whole numbers that differ by rank and place, in any dtype.
at::Tensor numbers(int rank, at::ScalarType type, at::IntArrayRef sizes = {2, 3}) {
  return ((at::arange(at::empty(sizes).numel(), at::kFloat) + rank) % 5).reshape(sizes).to(type);
}
bool same(at::Tensor const& a, at::Tensor const& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.to(at::kComplexDouble).equal(b.to(at::kComplexDouble));
}

/// A column of a matrix, so that memory between its elements belongs to somebody else.
struct Column {
  explicit Column(double first) : matrix(at::full({3, 2}, -7.0)), view(matrix.select(1, 1)) {
    view.copy_(at::arange(3) + first);
  }
  bool holds(double first) const {
    return view.equal(at::arange(3).to(at::kFloat) + first) && matrix.select(1, 0).eq(-7).all().item<bool>();
  }
  at::Tensor matrix, view;
};

}  // namespace

TEST_CASE("what is only moved may have any dtype", "[comm][known]") {
  for (int world : {1, 2, 3})
    CHECK(on_ranks(world, [](Run<>& fabric) {
      auto& ranks = *fabric.world();
      int const rank = ranks.rank(), size = ranks.size(), last = size - 1;
      for (auto const type : every_dtype) {
        std::string const name = c10::toString(type);
        auto const mine = numbers(rank, type);
        auto sent = mine.clone();
        ranks.broadcast(sent, last);
        expect(same(sent, numbers(last, type)), "broadcast of " + name);
        auto whole = at::empty({size, 2, 3}, type);
        ranks.all_gather_into(whole, mine);
        auto const parts = ranks.gather(mine, last);
        expect(parts.size() == (rank == last ? static_cast<std::size_t>(size) : 0),
               "gathered on the destination alone");
        for (int other = 0; other < size; ++other) {
          expect(same(whole[other], numbers(other, type)), "all_gather of " + name);
          if (rank == last)
            expect(same(parts[static_cast<std::size_t>(other)], numbers(other, type)), "gather of " + name);
        }
        std::vector<at::Tensor> given;
        for (int other = 0; rank == 0 && other < size; ++other) given.push_back(numbers(10 + other, type));
        auto part = at::empty({2, 3}, type);
        ranks.scatter_into(part, given, 0);
        expect(same(part, numbers(10 + rank, type)), "scatter of " + name);
        auto exchanged = at::empty({size, 3}, type);
        std::vector<at::Tensor> rows;
        for (int other = 0; other < size; ++other)
          rows.push_back(numbers(rank + 2 * other, type, {1, 3}).to(at::kComplexDouble));
        ranks.all_to_all_into(exchanged, at::cat(rows).to(type));
        for (int other = 0; other < size; ++other)
          expect(same(exchanged.narrow(0, other, 1), numbers(other + 2 * rank, type, {1, 3})), "all_to_all of " + name);
        if (size > 1) {
          auto received = at::empty({2, 3}, type);
          auto under_way = ranks.receive_into_async(received, (rank + last) % size, 7);
          ranks.send(mine, (rank + 1) % size, 7);
          under_way.wait();
          expect(same(received, numbers((rank + last) % size, type)), "a message of " + name);
        }
        auto const uneven = ranks.all_gather_uneven(mine);
        for (int other = 0; other < size; ++other)
          expect(same(uneven[static_cast<std::size_t>(other)], numbers(other, type)), "all_gather_uneven of " + name);
      }
      return true;
    }));
}

TEST_CASE(
    "COL-02: reductions by dtype: numbers add up, bool is or and and, complex adds up; the rest is refused by name",
    "[comm][known]") {
  CHECK(on_ranks(3, [](Run<>& fabric) {
    auto& ranks = *fabric.world();
    int const rank = ranks.rank();
    for (auto const type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar, at::kByte, at::kInt,
                            at::kLong, at::kComplexFloat, at::kComplexDouble}) {
      std::string const name = c10::toString(type);
      auto const expected = numbers(0, at::kComplexDouble) + numbers(1, at::kComplexDouble) +
                            numbers(2, at::kComplexDouble);
      auto sum = numbers(rank, type);
      ranks.all_reduce(sum);
      expect(sum.to(at::kComplexDouble).equal(expected), "all_reduce of " + name);
      auto part = at::empty({2}, type);
      ranks.reduce_scatter_into(part, numbers(rank, type));
      expect(part.to(at::kComplexDouble).equal(expected.view({-1}).narrow(0, 2 * rank, 2)),
             "reduce_scatter of " + name);
      if (!at::isComplexType(type)) {
        auto most = numbers(rank, type), least = most.clone(), product = most.clone();
        ranks.all_reduce(most, ReduceOp::max);
        ranks.all_reduce(least, ReduceOp::min);
        ranks.all_reduce(product, ReduceOp::product);
        auto const all = at::stack({numbers(0, at::kDouble), numbers(1, at::kDouble), numbers(2, at::kDouble)});
        expect(most.to(at::kDouble).equal(all.amax(0)) && least.to(at::kDouble).equal(all.amin(0)) &&
                   product.to(at::kDouble).equal(all.prod(0)),
               "max, min, product of " + name);
      }
    }
    auto const flags = [&] { return torch::tensor({rank == 0, true, false}); };
    auto any = flags(), every = flags(), product = flags();
    ranks.all_reduce(any, ReduceOp::max);
    ranks.all_reduce(every, ReduceOp::min);
    ranks.all_reduce(product, ReduceOp::product);
    expect(any.equal(torch::tensor({true, true, false})), "max of bool is or");
    expect(every.equal(torch::tensor({false, true, false})) && product.equal(every), "min and product of bool are and");
    for (auto const& [type, op, text] :
         {std::tuple(at::kBool, ReduceOp::sum, "a sum of Bool; write ReduceOp::max for or"),
          std::tuple(at::kComplexFloat, ReduceOp::max, "ComplexFloat has no such reduction"),
          std::tuple(at::kShort, ReduceOp::sum, "Short is moved but not reduced; convert to"),
          std::tuple(at::kLong, ReduceOp::average, "an average of Long would have to round")}) {
      auto const message = message_of([&, type = type, op = op] { ranks.all_reduce(at::ones({2}).to(type), op); });
      expect(contains(message, text), message);
    }
    expect(fabric.all_of(rank < 3) && !fabric.all_of(rank < 2) && fabric.any_of(rank == 2) && !fabric.any_of(rank == 3),
           "decisions");
    return true;
  }));
}

TEST_CASE("COL-01: tensors with gaps get right values, and what lies between stays", "[comm][known]") {
  CHECK(on_ranks(3, [](Run<>& fabric) {
    auto& ranks = *fabric.world();
    int const rank = ranks.rank();
    auto const own = [&] { return Column(10 * rank + 1); };
    auto sum = own(), sent = own(), scattered = own(), received = own(), exchanged = own();
    ranks.all_reduce(sum.view);
    expect(sum.view.equal(at::tensor({33.0f, 36.0f, 39.0f})) && sum.matrix.select(1, 0).eq(-7).all().item<bool>(),
           "all_reduce");
    ranks.broadcast(sent.view, 2);
    expect(sent.holds(21), "broadcast");
    std::vector<at::Tensor> parts;
    std::vector<Column> columns;
    for (int other = 0; rank == 1 && other < 3; ++other) parts.push_back(columns.emplace_back(100 * other).view);
    ranks.scatter_into(scattered.view, parts, 1);
    expect(scattered.holds(100 * rank), "scatter");
    auto const gathered = ranks.gather(own().view, 0);
    for (int other = 0; rank == 0 && other < 3; ++other)
      expect(gathered[static_cast<std::size_t>(other)].equal(Column(10 * other + 1).view), "gather");
    std::vector<Column> slots;
    std::vector<at::Tensor> views;
    for (int other = 0; rank == 2 && other < 3; ++other) views.push_back(slots.emplace_back(-1).view);
    ranks.gather_into(views, own().view, 2);
    for (int other = 0; rank == 2 && other < 3; ++other)
      expect(slots[static_cast<std::size_t>(other)].holds(10 * other + 1), "gather_into, and what lies beside stays");
    auto in_place = at::full({3, 2}, rank, at::kLong);
    ranks.gather_into(rank == 0 ? in_place.unbind(0) : std::vector<at::Tensor>(), in_place[1],
                      0);  // the destination's own is another rank's slot
    expect(rank != 0 || in_place.equal(at::tensor({0, 0, 1, 1, 2, 2}, at::kLong).view({3, 2})), "gather_into in place");
    auto const uneven = fabric.all_gather_uneven(own().view);
    auto const even = fabric.all_gather(own().view);
    for (int other = 0; other < 3; ++other)
      expect(uneven[static_cast<std::size_t>(other)].equal(Column(10 * other + 1).view) &&
                 even[other].equal(Column(10 * other + 1).view),
             "all_gather");
    ranks.all_to_all_into(exchanged.view, own().view);
    expect(exchanged.view.equal(at::tensor({1.0f, 11.0f, 21.0f}) + rank) &&
               exchanged.matrix.select(1, 0).eq(-7).all().item<bool>(),
           "all_to_all");
    auto under_way = ranks.receive_into_async(received.view, (rank + 2) % 3);
    ranks.send(own().view, (rank + 1) % 3);
    under_way.wait();
    expect(received.holds(10 * ((rank + 2) % 3) + 1), "a message");
    auto const message = message_of([&] { ranks.all_gather_into(at::empty({9}), own().view); });
    expect(contains(message, "output and input must be contiguous"), message);
    return true;
  }));
}

TEST_CASE("COL-03: tensors without elements are empty results, also where only some ranks have none", "[comm][known]") {
  for (bool const checks : {false, true}) {
    auto outcome = Run<>::launch({.devices = 3, .check_collectives = checks}, [](Run<>& fabric) {
      auto& ranks = *fabric.world();
      int const rank = ranks.rank();
      auto const empty = [] { return at::empty({1, 0, 2}); };
      ranks.all_reduce(empty(), ReduceOp::average);
      ranks.broadcast(empty(), 1);
      ranks.all_gather_into(at::empty({3, 1, 0, 2}), empty());
      ranks.reduce_scatter_into(at::empty({0}), at::empty({3, 0}));
      std::vector<at::Tensor> const parts = rank == 0 ? std::vector{empty(), empty(), empty()}
                                                      : std::vector<at::Tensor>();
      ranks.scatter_into(empty(), parts, 0);
      auto const gathered = ranks.gather(empty(), 2);
      expect(gathered.size() == (rank == 2 ? 3u : 0u), "gathered where it was asked for");
      for (auto const& part : gathered) expect(part.sizes() == at::IntArrayRef{1, 0, 2}, "of its shape");
      ranks.all_to_all_into(at::empty({3, 0}), at::empty({3, 0}));
      if (rank < 2) {
        if (rank == 0) ranks.send(empty(), 1);
        if (rank == 1) ranks.receive_into(empty(), 0);
      }
      auto const whole = fabric.all_gather(empty());
      expect(whole.sizes() == at::IntArrayRef{3, 1, 0, 2}, "a gathered nothing");
      auto const some = fabric.all_gather_uneven(rank == 1 ? at::ones({2, 2}) : empty());
      expect(some[0].sizes() == at::IntArrayRef{1, 0, 2} && some[1].equal(at::ones({2, 2})), "one rank has something");
      for (auto const& part : fabric.all_gather_uneven(empty())) expect(part.numel() == 0, "nobody has anything");
      // Nobody sends rank 1 anything, and rank 2 sends nothing.
      std::vector<int64_t> const to[] = {{1, 0, 2}, {2, 0, 1}, {0, 0, 0}};
      auto received = at::empty({to[0][static_cast<std::size_t>(rank)] + to[1][static_cast<std::size_t>(rank)] +
                                     to[2][static_cast<std::size_t>(rank)],
                                 2});
      ranks.all_to_all_into(received, at::full({rank == 2 ? 0 : 3, 2}, rank + 1.0),
                            {to[0][static_cast<std::size_t>(rank)], to[1][static_cast<std::size_t>(rank)], 0},
                            to[rank]);
      expect(received.sum().item<double>() == (rank == 0   ? 2 * (1 + 2 * 2)
                                               : rank == 1 ? 0
                                                           : 2 * (2 * 1 + 2)),
             "uneven all_to_all");
      ranks.barrier();
      return true;
    });
    if (!outcome) FAIL(outcome.failures().front().message);
    CHECK(*outcome);
  }
}

TEST_CASE("COL-04: ranks gather tensors of different shapes", "[comm][known]") {
  CHECK(on_ranks(3, [](Run<>& fabric) {
    int64_t const rows[] = {2, 5, 0};
    auto const of = [&](int rank) {
      return at::arange(rows[rank] * 3, at::kFloat).reshape({rows[rank], 3}) + 100 * rank;
    };
    fabric.recorder().start();
    auto const all = fabric.all_gather_uneven(of(fabric.global_rank()));
    expect(fabric.recorder().stop().size() == 2, "the shapes, then the tensors");
    for (int rank = 0; rank < 3; ++rank)
      expect(same(all[static_cast<std::size_t>(rank)], of(rank)), "rank " + std::to_string(rank) + "'s");
    // Other dims, and none at all.
    auto const mixed = fabric.all_gather_uneven(fabric.global_rank() == 0 ? at::full({}, 5.0)
                                                                          : at::ones({1, 2, fabric.global_rank()}));
    expect(mixed[0].dim() == 0 && mixed[0].item<double>() == 5 && mixed[1].sizes() == at::IntArrayRef{1, 2, 1} &&
               mixed[2].sizes() == at::IntArrayRef{1, 2, 2},
           "shapes of other dims");
    auto const message = message_of(
        [&] { fabric.all_gather_uneven(at::ones({2}, fabric.global_rank() == 1 ? at::kDouble : at::kFloat)); });
    expect(contains(message, "convert to one dtype") &&
               contains(message, fabric.global_rank() == 1 ? "rank 0 has Float" : "rank 1 has Double"),
           message);
    return true;
  }));
  CHECK(on_ranks<weft::SingleDevice>(1, [](Run<weft::SingleDevice>& fabric) {
    auto const all = fabric.all_gather_uneven(at::ones({2}));
    expect(all.size() == 1 && all[0].equal(at::ones({2})), "one process");
    expect(fabric.all_of(true) && !fabric.any_of(false), "decides alone");
    fabric.barrier(std::chrono::seconds(1));
    auto const message = message_of([&] { fabric.world(); });
    expect(contains(message, "SingleDevice has one process and no group of ranks"), message);
    return true;
  }));
}

TEST_CASE("a call that takes longer than its limit is an error with the call's name, rank and number", "[comm]") {
  auto const start = std::chrono::steady_clock::now();
  auto const outcome = Run<>::launch({.devices = 2}, [](Run<>& fabric) {
    auto& ranks = *fabric.world();
    ranks.barrier();
    if (ranks.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
    weft::comm::Communicator::TimeLimit const limit(ranks, std::chrono::milliseconds(300));
    auto const scattered = message_of([&] { ranks.reduce_scatter_into(at::empty({2}), at::ones({4})); });
    expect(contains(scattered, "reduce_scatter_into on axis world, rank 0 of 2, call 1:") &&
               contains(scattered, "(limit 300 ms)"),
           scattered);
    ranks.all_reduce(at::ones({4}));
  });
  REQUIRE(!outcome);
  CHECK_THAT(outcome.failures().front().message, ContainsSubstring("all_reduce on axis world, rank 0 of 2, call 2:") &&
                                                     ContainsSubstring("(limit 300 ms)"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("all_to_all and scatter may write where they read", "[comm]") {
  for (int world : {1, 2, 3})
    CHECK(on_ranks(world, [](Run<>& fabric) {
      auto& ranks = *fabric.world();
      auto const n = ranks.size();
      auto const place = at::full({n * 10000}, ranks.rank(), at::kInt);
      ranks.all_to_all_into(place, place);
      expect(place.view({n, -1}).eq(at::arange(n, at::kInt).unsqueeze(1)).all().item<bool>(),
             "rank r's part comes r-th");
      auto const row = at::full({n}, ranks.rank(), at::kBool);
      ranks.all_to_all_into(row, row);
      expect(row.equal(at::arange(n).ne(0)), "any dtype");
      auto parts = at::arange(n * 1000).view({n, 1000}).unbind(0);
      auto const last = parts.back().clone();
      bool const source = ranks.rank() == 0;
      auto const mine = source ? parts.back() : at::empty({1000}, at::kLong);
      ranks.scatter_into(mine, source ? parts : std::vector<at::Tensor>());
      expect(mine.equal(at::arange(1000) + ranks.rank() * 1000),
             "the last rank's part is sent before it is overwritten");
      return true;
    }));
}

TEST_CASE("what a call writes into may require a gradient: its values change, its history does not", "[comm]") {
  CHECK(on_ranks(2, [](Run<>& fabric) {
    auto& ranks = *fabric.world();
    auto const mine = [&](at::IntArrayRef sizes) { return at::full(sizes, ranks.rank() + 1.0).requires_grad_(); };
    auto const parameter = mine({3}), half = at::full({3}, ranks.rank() + 1.0, at::kHalf).requires_grad_(),
               matrix = mine({2, 3}), part = mine({1}), rows = mine({2});
    ranks.all_reduce(parameter, ReduceOp::average);
    expect(parameter.eq(1.5).all().item<bool>() && parameter.is_leaf() && parameter.requires_grad(), "average");
    ranks.all_reduce(half, ReduceOp::average);
    expect(half.eq(1.5).all().item<bool>(), "average of half");
    ranks.broadcast(matrix.t(), 1);
    expect(matrix.eq(2).all().item<bool>(), "broadcast into a transposed one");
    ranks.reduce_scatter_into(part, mine({2}), ReduceOp::average);
    expect(part.item<double>() == 1.5, "reduce_scatter");
    ranks.all_gather_into(rows, mine({1}));
    expect(rows.equal(at::tensor({1.0F, 2.0F})), "all_gather");
    ranks.all_to_all_into(rows, mine({2}));
    expect(rows.equal(at::tensor({1.0F, 2.0F})), "all_to_all");
    auto const input = mine({2}), computed = input * 2;
    ranks.all_reduce(computed, ReduceOp::average);
    computed.sum().backward();
    expect(computed.eq(3).all().item<bool>() && input.grad().eq(2).all().item<bool>(), "a result keeps its history");
    return true;
  }));
}

TEST_CASE("what cannot be sent as it lies in memory is refused by name; the facade sends the values", "[comm]") {
  CHECK(on_ranks(2, [](Run<>& fabric) {
    auto& ranks = *fabric.world();
    auto const conjugated = at::complex(at::ones({2}), at::ones({2})).conj(), negated = at::_neg_view(at::ones({2}));
    auto const refused = [](auto const& call, std::string const& part) {
      auto const message = message_of(call);
      expect(contains(message, " on axis world, rank ") && contains(message, part), message);
    };
    for (auto const& tensor : {conjugated, negated}) {
      refused([&] { ranks.all_reduce(tensor); }, "pass .resolve_conj().resolve_neg()");
      refused([&] { ranks.gather(tensor); }, "pass .resolve_conj().resolve_neg()");
      refused([&] { ranks.all_gather_uneven(tensor); }, "pass .resolve_conj().resolve_neg()");
      expect(fabric.all_reduce(tensor).equal(tensor) && fabric.all_gather(tensor)[1].equal(tensor), "the facade");
    }
    refused([&] { ranks.all_reduce(at::Tensor()); }, "the tensor is undefined");
    refused([&] { ranks.broadcast(at::eye(2).to_sparse()); }, "pass .to_dense()");
    refused([&] { ranks.all_reduce(at::ones({1}).expand({3})); }, "elements of the tensor share memory");
    refused([&] { ranks.receive_into(at::ones({1}).expand({3}), 1 - ranks.rank()); },
            "elements of the tensor share memory");
    expect(contains(message_of([&] { fabric.all_reduce(std::vector{at::ones({1}), at::Tensor()}); }),
                    "weft: all_reduce: the tensor is undefined"),
           "an undefined one in a list");
    expect(contains(message_of([&] { fabric.all_reduce(true, ReduceOp::sum); }),
                    "weft: all_reduce: a sum of bool; pass an int"),
           "a sum of bool");
    expect(fabric.all_reduce(ranks.rank() == 1, ReduceOp::max), "or");
    return true;
  }));
}

TEST_CASE("impossible calls say what is possible", "[comm]") {
  CHECK(on_ranks(2, [](Run<>& fabric) {
    auto& ranks = *fabric.world();
    auto const refused = [](auto const& call, std::string const& part) {
      auto const message = message_of(call);
      expect(contains(message, part), message);
    };
    refused([&] { ranks.gather_into({at::ones({2})}, at::ones({2}), ranks.rank()); }, "1 outputs on rank");
    refused([&] { ranks.gather_into({at::ones({2}), at::ones({3})}, at::ones({2}), ranks.rank()); },
            "an output is [3] of Float, the tensor [2] of Float; all must be alike");
    refused([&] { ranks.gather(at::ones({2}), 2); }, "destination 2 is not a rank of the group; write 0 to 1");
    refused(
        [&] {
          ranks.scatter_into(at::empty({2}), ranks.rank() == 0 ? std::vector{at::ones({2})} : std::vector<at::Tensor>(),
                             ranks.rank());
        },
        ranks.rank() == 0 ? "1 parts for 2 ranks" : "0 parts for 2 ranks");
    refused([&] { ranks.scatter_into(at::empty({2}), {at::ones({2}), at::ones({3})}, ranks.rank()); },
            "a part is [3] of Float, the output [2] of Float");
    refused([&] { ranks.all_to_all_into(at::empty({3}), at::ones({3})); }, "whose first size 2 ranks divide");
    refused([&] { ranks.all_to_all_into(at::empty({3}), at::ones({3}), {1, 2}, {1, 1}); },
            "parts of [1, 1] rows do not make the input's [3]");
    refused([&] { ranks.send(at::ones({1}), ranks.rank()); }, "is this rank itself");
    refused([&] { ranks.send(at::ones({1}), 1 - ranks.rank(), 1 << 30); }, "write 0 to 2^30 - 1");
    return true;
  }));
}
