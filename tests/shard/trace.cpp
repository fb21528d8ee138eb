#include "pieces.hpp"

#include <weft/estimates/estimate.hpp>

using namespace test;
using Trace = std::vector<std::string>;
using Sum = weft::comm::Sum;

namespace {

template <class Sharding, class... Options>
using Unit = weft::FSDP<Sharding, Pieces, weft::Bucket<1>, Options...>;  // each unit is a bucket
template <class Sharding, class... Options>
using Together = weft::FSDP<Sharding, Pieces, Options...>;

weft::ModelShape const row_shape{.units = {{.parameters = {{3}}},
                                           {.parent = 0, .parameters = {{8}}},
                                           {.parent = 0, .parameters = {{15}}},
                                           {.parent = 0, .parameters = {{24}}}}};
std::vector<std::pair<int64_t, std::string>> const row_names{
    {3, "root"}, {8, "a"}, {15, "b"}, {24, "c"}, {8 + 15 + 24, "abc"}};

struct Kept {
  static constexpr weft::ShardConfig config{.reshard_after_forward = false};
};

/// "forward gather a": collectives by the group that they are for, which their bytes tell.
Trace told(std::vector<weft::comm::Event> const& events, int world,
           std::vector<std::pair<int64_t, std::string>> const& names) {
  using enum weft::comm::Kind;
  Trace trace;
  for (auto const& event : events) {
    auto text = event.phase + " " +
                (event.kind == all_gather                                   ? "gather"
                 : event.kind == reduce_scatter || event.kind == all_reduce ? "reduce"
                                                                            : name_of(event.kind));
    std::string name = " of " + std::to_string(event.bytes) + " bytes";
    for (auto const& [numel, known] : names) {
      auto const padded = event.kind == all_reduce ? numel : (numel + world - 1) / world * world;
      if (event.bytes == static_cast<std::size_t>(4 * padded)) name = " " + known;
    }
    trace.push_back(text + name + (event.group_size == world ? "" : " among " + std::to_string(event.group_size)));
  }
  return trace;
}

/// The collectives of each of three steps on rank 0, and the same ones on every rank; their sums are the estimate's.
template <class Strategy, class Module>
std::vector<Trace> steps(int world, Module const& make, weft::ModelShape const& shape,
                         std::vector<std::pair<int64_t, std::string>> const& names) {
  return on_ranks<Strategy>(world, [&](Run<Strategy>& fabric) {
    auto [model, optimizer] = fabric.setup(make(), weft::SGD{.lr = 0.1});
    std::vector<Trace> traces;
    auto const expected = weft::estimate<Strategy>(shape, world);
    for (int step = 0; step < 3; ++step) {
      fabric.recorder().start();
      fabric.backward(model(at::ones({3})).sum());
      optimizer.step();
      optimizer.zero_grad();
      auto const events = fabric.recorder().stop();
      std::map<weft::comm::Kind, Sum> sums;
      for (auto const& event : events) {
        auto& sum = sums[event.kind];
        sum.count += 1;
        sum.bytes += event.bytes;
        sum.ring_bytes += weft::comm::ring_bytes(event.kind, event.group_size, event.bytes);
      }
      auto const same = [&](weft::comm::Kind kind, Sum const& estimated) {
        expect(sums[kind].count == estimated.count && sums[kind].bytes == estimated.bytes &&
                   std::abs(sums[kind].ring_bytes - estimated.ring_bytes) < 1e-6,
               std::string("the estimate of ") + name_of(kind));
        sums.erase(kind);
      };
      same(weft::comm::Kind::all_gather, expected.all_gather);
      same(weft::comm::Kind::reduce_scatter, expected.reduce_scatter);
      same(weft::comm::Kind::all_reduce, expected.all_reduce);
      expect(sums.empty(), "no other collectives");
      traces.push_back(told(events, world, names));
    }
    auto const texts = [&] {
      std::string text;
      for (auto const& trace : traces)
        for (auto const& event : trace) text += event + "\n";
      return text;
    }();
    expect(fabric.broadcast(texts) == texts, "the same sequence on every rank");
    return traces;
  });
}

template <class Strategy>
void check(Trace const& expected) {
  for (int world : {1, 2, 4})
    for (auto const& trace : steps<Strategy>(world, [] { return Row(); }, row_shape, row_names)) {
      INFO("world " << world);
      CHECK(trace == (world == 1 ? Trace{} : expected));
    }
}

}  // namespace

TEST_CASE(
    "FullShard: two gathers and a reduction for each unit, one gather for the root; the next unit is gathered "
    "meanwhile",
    "[shard]") {
  check<Unit<weft::FullShard>>({"forward gather root", "forward gather a", "forward gather b", "forward gather c",  //
                                "backward gather c", "backward gather b", "backward reduce c", "backward gather a",
                                "backward reduce b", "backward reduce a", "backward reduce root"});
  check<Together<weft::FullShard>>({"forward gather root", "forward gather abc", "backward gather abc",
                                    "backward reduce abc", "backward reduce root"});
}

TEST_CASE("ShardGradOp gathers once", "[shard]") {
  check<Unit<weft::ShardGradOp>>({"forward gather root", "forward gather a", "forward gather b", "forward gather c",  //
                                  "backward reduce c", "backward reduce b", "backward reduce a",
                                  "backward reduce root"});
  check<Together<weft::ShardGradOp>>(
      {"forward gather root", "forward gather abc", "backward reduce abc", "backward reduce root"});
}

TEST_CASE("NoShard reduces and gathers nothing", "[shard]") {
  check<Unit<weft::NoShard>>({"backward reduce c", "backward reduce b", "backward reduce a", "backward reduce root"});
  check<Together<weft::NoShard>>({"backward reduce abc", "backward reduce root"});
}

TEST_CASE("more may be gathered ahead, as far as the limit goes", "[shard]") {
  check<Unit<weft::FullShard, weft::Prefetch<2>, weft::RateLimit<3>>>(
      {"forward gather root", "forward gather a", "forward gather b", "forward gather c",  //
       "backward gather c", "backward gather b", "backward gather a", "backward reduce c", "backward reduce b",
       "backward reduce a", "backward reduce root"});
  check<Unit<weft::FullShard, weft::RateLimit<1>>>(
      {"forward gather root", "forward gather a", "forward gather b", "forward gather c",  //
       "backward gather c", "backward reduce c", "backward gather b", "backward reduce b", "backward gather a",
       "backward reduce a", "backward reduce root"});
}

TEST_CASE("a sharding of one's own is told by its value", "[shard]") {
  check<Unit<Kept>>({"forward gather root", "forward gather a", "forward gather b", "forward gather c",  //
                     "backward reduce c", "backward reduce b", "backward reduce a", "backward reduce root"});
}

TEST_CASE("frozen parameters travel apart and are not reduced; a unit inside of another is a group of its own",
          "[shard]") {
  // root 5 { outer 10 + 3 frozen { inner 17 }, last 24 frozen }
  weft::ModelShape const shape{.units = {{.parameters = {{5}}},
                                         {.parent = 0, .parameters = {{10}, {3, false}}},
                                         {.parent = 1, .parameters = {{17}}},
                                         {.parent = 0, .parameters = {{24, false}}}}};
  std::vector<std::pair<int64_t, std::string>> const names{
      {5, "root"}, {10, "outer"}, {3, "outer's frozen"}, {17, "inner"}, {24, "last"}};
  using Nested = weft::FSDP<weft::FullShard, weft::WrapPolicy<Piece, Outer>, weft::Bucket<1>>;
  for (int world : {1, 2, 4})
    for (auto const& trace : steps<Nested>(world, [] { return NestedRow(); }, shape, names)) {
      INFO("world " << world);
      CHECK(trace == (world == 1
                          ? Trace{}
                          : Trace{"forward gather root", "forward gather outer's frozen", "forward gather outer",
                                  "forward gather inner", "forward gather last", "backward gather last",
                                  "backward gather outer's frozen", "backward gather outer", "backward gather inner",
                                  "backward reduce inner", "backward reduce outer", "backward reduce root"}));
    }
}

TEST_CASE("evaluation gathers each unit once and reduces nothing", "[shard]") {
  auto const evaluate = []<class Strategy>(std::type_identity<Strategy>) {
    return on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
      auto model = fabric.setup(Row());
      at::NoGradGuard const no_grad;
      model(at::ones({3}));
      fabric.recorder().start();
      model(at::ones({3}));
      return told(fabric.recorder().stop(), 2, row_names);
    });
  };
  Trace const gathers{"forward gather root", "forward gather a", "forward gather b", "forward gather c"};
  CHECK(evaluate(std::type_identity<Unit<weft::FullShard>>()) == gathers);
  CHECK(evaluate(std::type_identity<Unit<weft::ShardGradOp>>()) == gathers);
  CHECK(evaluate(std::type_identity<Unit<weft::NoShard>>()) == Trace{});
}
