#include "../shard/pieces.hpp"

using Catch::Matchers::ContainsSubstring;
using namespace test;

namespace {

template <class Strategy>
using Function = std::function<void(Run<Strategy>&)>;

/// The messages of all ranks of a job in the checking grade, by rank. Ends within 10 s, whatever ranks do.
template <class Strategy = weft::DDP<>>
std::map<int, std::string> checked(int world, std::type_identity_t<Function<Strategy>> function,
                                   std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  auto const start = std::chrono::steady_clock::now();
  auto const outcome = Run<Strategy>::launch(
      {.devices = world, .collective_timeout = timeout, .check_collectives = true}, std::move(function));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  std::map<int, std::string> messages;
  if (!outcome)
    for (auto const& failure : outcome.failures()) messages[failure.rank] = failure.message;
  return messages;
}
void check_all(std::map<int, std::string> const& messages, int world, std::vector<std::string> const& parts) {
  CHECK(static_cast<int>(messages.size()) == world);
  for (auto const& [rank, message] : messages)
    for (auto const& part : parts) CHECK_THAT(message, ContainsSubstring(part));
}
using Fabric = Run<>;
using Full = weft::FSDP<weft::FullShard, Pieces, weft::Bucket<1>>;

/// Two pieces of one size, of which a rank may run one alone, or both the other way round.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    w = register_parameter("w", torch::ones({3}));
    a = register_module("a", Piece(8));
    b = register_module("b", Piece(8));
  }
  at::Tensor forward(at::Tensor const& x, std::string const& order) {
    auto y = x * w.mean();
    for (char const which : order) y = which == 'a' ? a(y) : b(y);
    return y;
  }
  at::Tensor w;
  Piece a = nullptr, b = nullptr;
};
TORCH_MODULE(Pair);

}  // namespace

TEST_CASE("checking grade: ranks that make different calls all get an error that says which rank makes which",
          "[comm][checking]") {
  check_all(checked(3,
                    [](Fabric& fabric) {
                      auto& world = *fabric.session().world;
                      if (fabric.global_rank() == 1)
                        world.broadcast(at::ones({4}), 2);
                      else
                        world.all_reduce(at::ones({4}));
                    }),
            3,
            {"call 0 on axis world differs between its ranks", "ranks 0, 2: all_reduce of [4] of Float by sum",
             "rank 1: broadcast of [4] of Float from rank 2"});
}

TEST_CASE("checking grade: shape, dtype, operation and source are compared", "[comm][checking]") {
  check_all(
      checked(2, [](Fabric& fabric) { fabric.session().world->all_reduce(at::ones({4 + fabric.global_rank()})); }), 2,
      {"rank 0: all_reduce of [4] of Float", "rank 1: all_reduce of [5] of Float"});
  check_all(
      checked(2,
              [](Fabric& fabric) {
                fabric.session().world->all_reduce(at::ones({4}, fabric.global_rank() ? at::kDouble : at::kFloat));
              }),
      2, {"rank 0: all_reduce of [4] of Float", "rank 1: all_reduce of [4] of Double"});
  check_all(checked(2,
                    [](Fabric& fabric) {
                      fabric.session().world->all_reduce(
                          at::ones({4}), fabric.global_rank() ? weft::ReduceOp::max : weft::ReduceOp::sum);
                    }),
            2, {"rank 0: all_reduce of [4] of Float by sum", "rank 1: all_reduce of [4] of Float by maximum"});
  check_all(checked(2, [](Fabric& fabric) { fabric.session().world->broadcast(at::ones({4}), fabric.global_rank()); }),
            2, {"rank 0: broadcast of [4] of Float from rank 0", "rank 1: broadcast of [4] of Float from rank 1"});
}

TEST_CASE("checking grade: a rank that makes one call less is found out at the next", "[comm][checking]") {
  check_all(checked(2,
                    [](Fabric& fabric) {
                      if (fabric.global_rank() == 0) fabric.all_reduce(1.0);
                    }),
            2, {"rank 0: all_reduce of [", "rank 1: barrier"});
}

TEST_CASE("checking grade: a rank that never calls is named when the time is up", "[comm][checking]") {
  auto const messages = checked(
      2,
      [](Fabric& fabric) {
        if (fabric.global_rank() == 0)
          fabric.all_reduce(1.0);
        else
          std::this_thread::sleep_for(std::chrono::seconds(60));
      },
      std::chrono::milliseconds(1500));
  REQUIRE(messages.count(0) == 1);
  CHECK_THAT(messages.at(0), ContainsSubstring("rank 1 makes no such call within 1500 ms"));
}

TEST_CASE("checking grade: a call's own limit holds while ranks wait to compare", "[comm][checking]") {
  auto const messages = checked(2, [](Fabric& fabric) {
    if (fabric.global_rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
    fabric.barrier(std::chrono::milliseconds(300));
  });
  REQUIRE(messages.count(0) == 1);
  CHECK_THAT(messages.at(0), ContainsSubstring("rank 1 makes no such call within 300 ms"));
}

TEST_CASE("checking grade: what a rank sends in all_to_all is what the other receives", "[comm][checking]") {
  check_all(checked(2,
                    [](Fabric& fabric) {
                      auto const rows = at::ones({3 + fabric.global_rank(), 2});
                      auto const sizes = fabric.global_rank() == 0 ? std::vector<int64_t>{1, 2}
                                                                   : std::vector<int64_t>{2, 2};
                      fabric.world()->all_to_all_into(at::empty_like(rows), rows, sizes, sizes);
                      fabric.world()->all_to_all_into(at::empty_like(rows), rows, sizes,
                                                      fabric.global_rank() == 0 ? std::vector<int64_t>{2, 1} : sizes);
                    }),
            2,
            {"call 1 on axis world, rank ",
             "all_to_all of Float: rank 0 sends 4 elements to rank 0, which receives 2 from it"});
  check_all(checked(2,
                    [](Fabric& fabric) {
                      auto const rows = at::ones({2}, fabric.global_rank() == 0 ? at::kFloat : at::kInt);
                      fabric.world()->all_to_all_into(at::empty_like(rows), rows);
                    }),
            2, {"rank 0: all_to_all of Float", "rank 1: all_to_all of Int"});
}

TEST_CASE("checking grade: training is what it is without", "[comm][checking]") {
  for_each_strategy<
      weft::DDP<>, Full,
      weft::FSDP<weft::HybridShard, Pieces, weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", 2>>>>(
      []<class Strategy>(std::type_identity<Strategy>) {
        auto const train = [](bool checks) {
          auto outcome = Run<Strategy>::launch(
              {.devices = 4, .check_collectives = checks},
              std::function<double(Run<Strategy>&)>([](Run<Strategy>& fabric) {
                auto [model, optimizer] = fabric.setup(Row(), weft::SGD{.lr = 0.01, .momentum = 0.9});
                double loss_sum = 0;
                for (int step = 0; step < 5; ++step) {
                  auto const guard = fabric.no_backward_sync(model, step % 3 == 1);
                  auto const loss = model(at::full({2}, 1.0 + fabric.global_rank())).pow(2).mean();
                  fabric.backward(loss);
                  if (step % 3 != 1) {
                    fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0});
                    optimizer.step();
                    optimizer.zero_grad();
                  }
                  loss_sum += fabric.all_reduce(loss.template item<double>());
                }
                return loss_sum;
              }));
          if (!outcome) FAIL(outcome.failures().front().message);
          return *outcome;
        };
        CHECK(train(true) == train(false));
      });
}

TEST_CASE("checking grade: a unit called on some ranks only is an error on all, and names the unit",
          "[comm][checking][shard]") {
  check_all(checked<Full>(3,
                          [](Run<Full>& fabric) {
                            auto model = fabric.setup(Pair());
                            fabric.backward(model(at::ones({2}), fabric.global_rank() == 2 ? "b" : "ab").sum());
                          }),
            3,
            {"ranks 0, 1: all_gather of [9] of Float for a (test::Piece)",
             "rank 2: all_gather of [9] of Float for b (test::Piece)"});
  // Last in forward: the other rank is in backward by then.
  check_all(checked<Full>(2,
                          [](Run<Full>& fabric) {
                            auto model = fabric.setup(Pair());
                            fabric.backward(model(at::ones({2}), fabric.global_rank() == 1 ? "a" : "ab").sum());
                          }),
            2,
            {"rank 0: all_gather of [8] of Float for b (test::Piece)",
             "rank 1: all_gather of [8] of Float for a (test::Piece)"});
}

TEST_CASE("checking grade: units of one size that run in another order on one rank would train wrongly, in silence",
          "[comm][checking][shard]") {
  auto const job = [](Run<Full>& fabric) {
    auto model = fabric.setup(Pair());
    fabric.backward(model(at::ones({2}), fabric.global_rank() == 1 ? "ba" : "ab").sum());
  };
  check_all(checked<Full>(2, job), 2,
            {"rank 0: all_gather of [8] of Float for a (test::Piece)",
             "rank 1: all_gather of [8] of Float for b (test::Piece)"});
}
