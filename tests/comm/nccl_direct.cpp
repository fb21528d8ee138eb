// The direct path over NCCL's C interface, on the double of it: values, sequences of calls, errors. What a GPU is
// needed for is in tests/gpu.
#include "ranks.hpp"

#include "every_collective.hpp"
#include "nccl_double.hpp"

#include <weft/comm/nccl_direct.hpp>
#include <weft/nn/layers.hpp>

using namespace test;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using nccl_double::Arena;
using weft::ReduceOp;

namespace {

struct Doubled {
  using category = weft::category::backend;
  static constexpr std::string_view name = "Doubled";
};

}  // namespace

template <>
struct weft::comm::BackendFactory<Doubled> {
  static constexpr c10d::ProcessGroup::BackendType type = c10d::ProcessGroup::BackendType::CUSTOM;
  static c10::intrusive_ptr<c10d::Backend> create(Endpoint const& endpoint) {
    return connect_nccl<nccl_double::Api>(endpoint);
  }
};

namespace {

template <class Strategy = weft::DDP<>>
using DoubledRun = weft::Fabric<Strategy, weft::On<weft::Cpu>, Doubled>;

/// What rank 0 returns; every rank leaves in order, and used NCCL as it is meant.
template <class Strategy = weft::DDP<>, class Function>
auto on_doubled(Arena const& arena, int world, Function function) {
  using Run = DoubledRun<Strategy>;
  auto outcome = Run::launch({.devices = world},
                             std::function<std::invoke_result_t<Function&, Run&>(Run&)>(std::move(function)));
  if (!outcome) FAIL(outcome.failures().front().message);
  CHECK(arena.misuse() == "");
  CHECK(arena.open() == 0);
  return std::move(*outcome);
}
/// The first failure's message of a job that has to fail, within 10 s.
std::string failure_on_doubled(int world, weft::LaunchOptions options, std::function<void(DoubledRun<>&)> function) {
  auto const start = std::chrono::steady_clock::now();
  options.devices = world;
  auto const outcome = DoubledRun<>::launch(options, std::move(function));
  CHECK(std::chrono::steady_clock::now() - start < 10s);
  if (outcome) return "the job did not fail";
  return outcome.failures().front().message;
}
std::size_t count_of(std::string const& text, std::string const& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

}  // namespace

TEST_CASE("direct NCCL: every collective has its closed value", "[comm][nccl]") {
  for (int world : {1, 2, 3, 4}) {
    Arena const arena;
    CHECK(on_doubled(arena, world, [](DoubledRun<>& fabric) {
      run_every_collective(*fabric.world());
      return true;
    }));
  }
}

TEST_CASE("direct NCCL: lists of tensors go in one group", "[comm][nccl]") {
  Arena const arena;
  CHECK(on_doubled(arena, 3, [](DoubledRun<>& fabric) {
    auto& backend = *fabric.world()->connection();
    int const rank = fabric.global_rank();
    std::vector<at::Tensor> several{at::full({2}, rank + 1.0), at::full({3}, rank + 2.0, at::kDouble)};
    backend.allreduce_coalesced(several)->wait();
    expect(several[0].eq(6).all().item<bool>() && several[1].eq(9).all().item<bool>(), "coalesced sums");
    backend.reduce(several, c10d::ReduceOptions())->wait();
    expect(several[0].eq(rank == 0 ? 18 : 6).all().item<bool>(), "a sum at the root alone");
    std::vector<std::vector<at::Tensor>> lists{{at::empty({1}), at::empty({2}), at::empty({3})}};  // of different sizes
    std::vector<at::Tensor> own{at::full({rank + 1}, rank + 1.0)};
    backend.allgather(lists, own)->wait();
    for (int other = 0; other < 3; ++other)
      expect(lists[0][static_cast<std::size_t>(other)].equal(at::full({other + 1}, other + 1.0)), "gathered lists");
    std::vector<std::vector<at::Tensor>> inputs{{at::full({1}, 1.0), at::full({2}, 2.0), at::full({3}, 3.0)}};
    std::vector<at::Tensor> outputs{at::empty({rank + 1})};
    backend.reduce_scatter(outputs, inputs)->wait();
    expect(outputs[0].equal(at::full({rank + 1}, 3.0 * (rank + 1))), "reduced lists");
    std::vector<at::Tensor> sent{at::full({1}, rank + 0.0), at::full({1}, rank + 10.0), at::full({1}, rank + 20.0)},
        received{at::empty({1}), at::empty({1}), at::empty({1})};
    backend.alltoall(received, sent)->wait();
    expect(at::cat(received).equal(at::arange(3.0) + 10 * rank), "exchanged lists");
    return true;
  }));
  CHECK_THAT(arena.log(1), ContainsSubstring("group {\nall_reduce float32 x 2\nall_reduce float64 x 3\n}\n"));
  CHECK_THAT(
      arena.log(1),
      ContainsSubstring(
          "group {\nbroadcast float32 x 1 root 0\nbroadcast float32 x 2 root 1\nbroadcast float32 x 3 root 2\n}\n"));
  CHECK_THAT(arena.log(1),
             ContainsSubstring(
                 "group {\nreduce float32 x 1 root 0\nreduce float32 x 2 root 1\nreduce float32 x 3 root 2\n}\n"));
}

TEST_CASE("direct NCCL: the calls of a job, one by one", "[comm][nccl]") {
  Arena const arena;
  CHECK(on_doubled(arena, 2, [](DoubledRun<>& fabric) {
    auto& ranks = *fabric.world();
    auto value = at::ones({3, 4}), whole = at::empty({6}), part = at::empty({2}, at::kBFloat16);
    ranks.all_reduce(value);
    ranks.all_reduce(at::empty({0}));  // nothing
    ranks.all_gather_into(whole, at::ones({3}));
    ranks.reduce_scatter_into(part, at::ones({4}, at::kBFloat16), ReduceOp::average);
    ranks.broadcast(at::ones({2}, at::kComplexFloat), 1);
    ranks.all_to_all_into(at::empty({4}), at::ones({4}));
    ranks.all_to_all_into(at::empty({fabric.global_rank() == 0 ? 3 : 1}), at::ones({2}),
                          fabric.global_rank() == 0 ? std::vector<int64_t>{2, 1} : std::vector<int64_t>{0, 1},
                          fabric.global_rank() == 0 ? std::vector<int64_t>{2, 0} : std::vector<int64_t>{1, 1});
    ranks.gather(at::ones({2}), 1);
    std::vector<at::Tensor> parts;
    if (fabric.global_rank() == 0) parts = {at::ones({5}), at::ones({5})};
    ranks.scatter_into(at::empty({5}), parts, 0);
    static_cast<void>(ranks.register_buffer(value));        // for as long as the handle lives
    static auto const kept = ranks.register_buffer(whole);  // and no longer than the group
    return true;
  }));
  std::string const same =
      "init R of 2\n"
      "group {\nall_reduce float32 x 12\n}\n"
      "group {\nall_gather float32 x 3\n}\n"
      "group {\nreduce_scatter bfloat16 x 2\n}\n"
      "group {\nbroadcast uint8 x 16 root 1\n}\n"
      "group {\nsend float32 x 2 with 0\nsend float32 x 2 with 1\nreceive float32 x 2 with 0\nreceive float32 x 2 with "
      "1\n}\n";
  std::string const end =
      "register 48\nderegister\nregister 24\ngroup {\nall_reduce float32 x "
      "1\n}\nderegister\nfinalize\ndestroy\n";  // teardown's barrier
  auto const of_rank = [&](std::string const& rank, std::string const& own) {
    return "init " + rank + same.substr(6) + own + end;
  };
  CHECK(arena.log(0) ==
        of_rank("0",
                "group {\nsend float32 x 2 with 0\nreceive float32 x 2 with 0\nreceive float32 x 1 with 1\n}\n"
                "group {\nsend float32 x 2 with 1\n}\n"
                "group {\nsend float32 x 5 with 0\nsend float32 x 5 with 1\nreceive float32 x 5 with 0\n}\n"));
  CHECK(arena.log(1) ==
        of_rank("1",
                "group {\nsend float32 x 1 with 0\nsend float32 x 1 with 1\nreceive float32 x 1 with 1\n}\n"
                "group {\nsend float32 x 2 with 1\nreceive float32 x 2 with 0\nreceive float32 x 2 with 1\n}\n"
                "group {\nreceive float32 x 5 with 0\n}\n"));
}

TEST_CASE("direct NCCL: axes of a 2 by 2 mesh are split from the world, groups of some ranks meet by themselves",
          "[comm][nccl]") {
  Arena const arena;
  CHECK(on_doubled(arena, 4, [](DoubledRun<>& fabric) {
    auto& session = fabric.session();
    int const rank = fabric.global_rank();
    auto const rows = session.connect_axis("shard", rank < 2 ? std::vector{0, 1} : std::vector{2, 3});
    auto const columns = session.connect_axis("replicate", rank % 2 == 0 ? std::vector{2, 0} : std::vector{3, 1});
    expect(rows->rank() == rank % 2 && columns->rank() == 1 - rank / 2, "ranks are positions in the list");
    auto first = at::full({3}, rank + 1.0), second = first.clone();
    auto under_way = rows->all_reduce_async(first);  // both axes at once
    columns->all_reduce(second);
    under_way.wait();
    expect(first.eq(rank < 2 ? 3 : 7).all().item<bool>(), "the sum of the row");
    expect(second.eq(rank % 2 == 0 ? 4 : 6).all().item<bool>(), "the sum of the column");
    auto gathered = at::empty({2});
    columns->all_gather_into(gathered, at::full({1}, rank + 0.0));
    expect(gathered.equal(at::tensor({rank % 2 + 2.0, rank % 2 + 0.0}).to(at::kFloat)), "gathered in the list's order");
    if (rank % 3 == 0) {
      auto const pair = session.connect_group("pair", {3, 0});
      auto value = at::full({1}, rank + 1.0);
      pair->all_reduce(value);
      expect(value.item<float>() == 5, "the sum of a pair that connects alone");
    }
    return true;
  }));
  CHECK_THAT(arena.log(2), ContainsSubstring("init 2 of 4\nsplit color 2 key 0\nsplit color 0 key 0\n"));
  CHECK_THAT(arena.log(1), ContainsSubstring("init 1 of 4\nsplit color 0 key 1\nsplit color 1 key 1\n"));
  CHECK(count_of(arena.log(1), "init") == 1);
  CHECK(count_of(arena.log(3), "init") == 2);
  CHECK(count_of(arena.log(3), "destroy") == 4);
}

namespace {

struct DoublingImpl : torch::nn::Module {
  DoublingImpl() { linear = register_module("linear", weft::nn::Linear(6, 6)); }
  at::Tensor forward(at::Tensor const& x) { return x + torch::tanh(linear(x)); }
  weft::nn::Linear linear = nullptr;
};
WEFT_MODULE(Doubling);

/// Three steps; whole parameters afterwards.
template <class AnyFabric>
std::vector<at::Tensor> train(AnyFabric& fabric) {
  fabric.seed_everything(5);
  auto [model, optimizer] = fabric.setup(torch::nn::Sequential(Doubling(), torch::nn::Linear(6, 6), Doubling()),
                                         weft::AdamW{.lr = 0.05});
  for (int step = 0; step < 3; ++step) {
    fabric.backward(model(at::linspace(-1, 1, 24).reshape({4, 6}) * (fabric.global_rank() + 1)).square().sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  auto const whole = fabric.summon_full_params(model);
  std::vector<at::Tensor> values;
  for (auto const& row : model.table().rows()) values.push_back(row.tensor.detach().clone());
  return values;
}

template <class Strategy>
void check_equal_to_gloo(Arena const& arena, int world) {
  auto const direct = on_doubled<Strategy>(arena, world, [](DoubledRun<Strategy>& fabric) { return train(fabric); });
  auto const gloo = on_ranks<Strategy>(world, [](Run<Strategy>& fabric) { return train(fabric); });
  REQUIRE(direct.size() == gloo.size());
  for (std::size_t i = 0; i < direct.size(); ++i) CHECK(relative_difference(direct[i], gloo[i]) < 1e-5);
}

}  // namespace

TEST_CASE("direct NCCL: steps under DDP, FSDP and hybrid sharding equal Gloo's", "[comm][nccl]") {
  using Wrap = weft::WrapPolicy<Doubling>;
  SECTION("DDP") { check_equal_to_gloo<weft::DDP<>>(Arena(), 3); }
  SECTION("FSDP") {
    Arena const arena;
    check_equal_to_gloo<weft::FSDP<weft::FullShard, Wrap>>(arena, 2);
    CHECK(count_of(arena.log(0), "register") ==
          2 * count_of(arena.log(0), "deregister"));  // "deregister" counts as both
    CHECK(count_of(arena.log(0), "deregister") >= 2);
  }
  SECTION("hybrid") {
    Arena const arena;
    check_equal_to_gloo<
        weft::FSDP<weft::HybridShard, Wrap, weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", 2>>>>(arena, 4);
    CHECK(count_of(arena.log(3), "split") == 2);
  }
}

TEST_CASE("direct NCCL: a call that fails ends the communicator, and everybody is told why", "[comm][nccl]") {
  struct Case {
    char const* call;
    char const* expected;
  };
  for (auto const& [call, expected] :
       {Case{"all_reduce",
             "weft: all_reduce on axis world, rank 1 of 2, call 2: NCCL: call 2 of the group (all_reduce): unhandled "
             "system error"},
        Case{"group_end",
             "weft: all_reduce on axis world, rank 1 of 2, call 2: NCCL: call 2 of the group (all_reduce): unhandled "
             "system error"},
        Case{"group_start", "rank 1 of 2, call 2: NCCL: call 2 of the group (all_reduce): unhandled system error"}}) {
    nccl_double::Fault fault{.rank = 1, .nth = 2, .result = nccl_double::Result::system_error};
    std::strcpy(fault.call, call);
    Arena const arena(fault);
    auto const message = failure_on_doubled(2, {.shutdown_timeout = 500ms}, [](DoubledRun<>& fabric) {
      auto& ranks = *fabric.world();
      auto value = at::ones({4});
      try {
        for (int i = 0; i < 5; ++i) ranks.all_reduce(value);
      } catch (weft::CommunicationError const&) {
        expect(contains(message_of([&] { ranks.barrier(); }),
                        "barrier on axis world, rank 1 of 2, call 3: NCCL: call 2 of the group (all_reduce): unhandled "
                        "system error"),
               "later calls say what happened first");
        throw;
      }
    });
    CHECK_THAT(message, ContainsSubstring(expected));
    CHECK(count_of(arena.log(1), "abort") == 1);
    CHECK(arena.misuse() == "");
  }
}

TEST_CASE("direct NCCL: an error that comes later is found by polling", "[comm][nccl]") {
  nccl_double::Fault fault{.rank = 0, .nth = 1, .result = nccl_double::Result::remote_error};
  std::strcpy(fault.call, "asynchronous");
  Arena const arena(fault);
  auto const message = failure_on_doubled(3, {.shutdown_timeout = 500ms}, [](DoubledRun<>& fabric) {
    auto value = at::ones({4});
    fabric.world()->all_reduce(value);
    fabric.world()->all_reduce(value);
  });
  CHECK_THAT(message,
             ContainsSubstring("weft: all_reduce on axis world, rank 0 of 3, call 1: NCCL: call 1 of the group "
                               "(all_reduce): remote process exited or there was a network error on rank 0 of 3: "
                               "another rank has failed, is late, or makes other calls"));
  CHECK(count_of(arena.log(0), "abort") == 1);
  CHECK(arena.misuse() == "");
}

TEST_CASE("direct NCCL: a rank that never comes ends the others' calls in time", "[comm][nccl]") {
  auto const late = [](auto& fabric) {
    if (fabric.global_rank() == 1) std::this_thread::sleep_for(20s);
  };
  SECTION("by the group's own limit, from a wait that has none") {
    Arena const arena;
    auto const message = failure_on_doubled(2, {.collective_timeout = 2s, .shutdown_timeout = 500ms},
                                            [&](DoubledRun<>& fabric) {
                                              late(fabric);
                                              fabric.world()->all_reduce(at::ones({4}));
                                            });
    CHECK_THAT(message,
               ContainsSubstring("weft: all_reduce on axis world, rank 0 of 2, call 0: NCCL: call 0 of the group "
                                 "(all_reduce) was not done within 2000 ms on rank 0 of 2: another rank"));
    CHECK(count_of(arena.log(0), "abort") == 1);
    CHECK(arena.misuse() == "");
  }
  SECTION("by the limit of a call") {
    Arena const arena;
    auto const message = failure_on_doubled(2, {.shutdown_timeout = 500ms}, [&](DoubledRun<>& fabric) {
      late(fabric);
      fabric.barrier(300ms);
    });
    CHECK_THAT(message, ContainsSubstring("weft: barrier on axis world, rank 0 of 2, call 0: NCCL: call 0 of the group "
                                          "(barrier) was not done within 300 ms on rank 0 of 2"));
    CHECK(count_of(arena.log(0), "abort") == 1);
  }
  SECTION("while a group is split off") {
    Arena const arena;
    auto const message = failure_on_doubled(2, {.collective_timeout = 2s, .shutdown_timeout = 500ms},
                                            [&](DoubledRun<>& fabric) {
                                              late(fabric);
                                              fabric.session().connect_axis("shard", {fabric.global_rank()});
                                            });
    CHECK_THAT(message, ContainsSubstring("weft: connecting axis shard, rank 0 of 1: NCCL: splitting off a group took "
                                          "more than 2000 ms on rank 0 of 2"));
  }
}

TEST_CASE("direct NCCL: what it cannot do is refused before NCCL hears of it", "[comm][nccl]") {
  Arena const arena;
  auto const messages = on_doubled(arena, 2, [](DoubledRun<>& fabric) {
    auto& ranks = *fabric.world();
    auto& backend = *ranks.connection();
    std::vector<at::Tensor> crooked{at::ones({4}), at::ones({4, 4}).t()}, flags{at::ones({2}, at::kBool)};
    c10d::AllreduceOptions bitwise;
    bitwise.reduceOp = c10d::ReduceOp::BAND;
    std::vector<at::Tensor> one{at::ones({2}, at::kInt)};
    return std::vector<std::string>{message_of([&] { ranks.send(at::ones({2}), 1 - ranks.rank(), 7); }),
                                    message_of([&] { backend.allreduce(crooked, {}); }),
                                    message_of([&] { backend.allreduce(flags, {}); }),
                                    message_of([&] { backend.allreduce(one, bitwise); })};
  });
  CHECK_THAT(messages[0], ContainsSubstring("weft: send on axis world, rank 0 of 2, call 0: NCCL matches messages "
                                            "between two ranks by their order, and has no tags, but tag 7 was given"));
  CHECK_THAT(messages[1],
             ContainsSubstring("NCCL: all_reduce: a tensor of sizes [4, 4] and strides [1, 4] is not contiguous"));
  CHECK_THAT(messages[2], ContainsSubstring("NCCL does not reduce Bool"));
  CHECK_THAT(messages[3], ContainsSubstring("and by nothing else"));
  CHECK(count_of(arena.log(0), "group {") == 1);  // teardown's barrier alone
}

TEST_CASE("direct NCCL: the double sees what is wrong", "[comm][nccl]") {
  using nccl_double::Api;
  using nccl_double::Op;
  using nccl_double::Type;
  auto const alone = [] {  // a communicator of one, ready
    weft::comm::nccl::Id id{};
    Api::get_unique_id(id);
    Api::Comm comm = nullptr;
    Api::comm_init_rank(comm, 1, id, 0);
    return comm;
  };
  auto const made_ready = [](Api::Comm comm) {
    auto state = nccl_double::Result::in_progress;
    for (int polls = 0; state == nccl_double::Result::in_progress && polls < 100; ++polls)
      Api::comm_async_error(comm, state);
    REQUIRE(state == nccl_double::Result::success);
    return comm;
  };
  Api::Stream stream(at::kCPU);
  float number = 1;
  Arena const arena;
  SECTION("a call before the communicator is ready") {
    auto* const comm = alone();
    Api::group_start();
    Api::all_reduce(&number, &number, 1, Type::float32, Op::sum, comm, stream);
    CHECK(arena.misuse() == "all_reduce on a communicator that is not ready");
    Api::group_end();
  }
  SECTION("a call outside of a group") {
    auto* const comm = made_ready(alone());
    Api::all_reduce(&number, &number, 1, Type::float32, Op::sum, comm, stream);
    CHECK(arena.misuse() == "all_reduce float32 x 1 outside of a group");
    nccl_double::open_group() = {};
  }
  SECTION("groups that do not match") {
    Api::group_end();
    CHECK(arena.misuse() == "group_end without group_start");
    nccl_double::open_group() = {};
  }
  SECTION("a call after the end") {
    auto* const comm = made_ready(alone());
    CHECK(arena.open() == 1);
    Api::comm_abort(comm);
    CHECK(arena.open() == 0);
    Api::comm_destroy(comm);
    CHECK(arena.misuse() == "comm_destroy on a communicator that is gone");
  }
  SECTION("buffers that stay registered") {
    auto* const comm = made_ready(alone());
    void* handle = nullptr;
    Api::comm_register(comm, &number, sizeof number, handle);
    Api::comm_finalize(comm);
    CHECK(arena.misuse() == "finalize with registered buffers");
  }
}

TEST_CASE("direct NCCL: the double sees ranks whose calls differ", "[comm][nccl]") {
  Arena const arena;
  auto const outcome = DoubledRun<>::launch({.devices = 2, .shutdown_timeout = 500ms}, [](DoubledRun<>& fabric) {
    fabric.world()->all_reduce(at::ones({3 + fabric.global_rank()}));
  });
  CHECK_THAT(arena.misuse(),
             ContainsSubstring("launches all_reduce float32 x") && ContainsSubstring("another call: all_reduce x"));
}
