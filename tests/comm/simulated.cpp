#include "ranks.hpp"

#include <weft/launch/simulated.hpp>

#include "../../examples/formula.hpp"

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::Simulated;

namespace {

torch::nn::Sequential small_model() {
  return torch::nn::Sequential(torch::nn::Linear(6, 5), torch::nn::ReLU(), torch::nn::BatchNorm1d(5),
                               torch::nn::Linear(5, 3));
}

std::string line_of(weft::comm::Event const& event) {
  return event.phase + " " + name_of(event.kind) + " " + std::to_string(event.group_size) + " " +
         std::to_string(event.bytes);
}

/// Events of setting up and of one step, and the gradients; every rank has the same batch.
template <class AnyFabric>
std::pair<std::vector<std::string>, std::vector<at::Tensor>> step(AnyFabric& fabric) {
  fabric.seed_everything(3);
  fabric.recorder().start();
  auto [model, optimizer] = fabric.setup(small_model(), weft::SGD{.lr = 0.1});
  fabric.backward(model(at::linspace(-1, 1, 24).reshape({4, 6})).pow(2).sum());
  fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0});
  optimizer.step();
  std::vector<std::string> lines;
  for (auto const& event : fabric.recorder().stop()) lines.push_back(line_of(event));
  std::vector<at::Tensor> values;
  for (auto const& row : model.table().rows()) values.push_back(row.tensor.detach().clone());
  return {lines, values};
}

}  // namespace

TEST_CASE("a simulated step has the events of a real one, and its weights when all batches are equal",
          "[comm][simulated]") {
  using Policy = weft::DDP<weft::Bucket<64>>;
  auto const [real_events, real_values] = on_ranks<Policy>(4, [](Run<Policy>& fabric) { return step(fabric); });
  using Alone = weft::Fabric<Policy, weft::On<weft::Cpu>, Simulated<4>>;
  for (int rank : {0, 3}) {
    auto const process = ::getpid();
    auto outcome = Alone::launch({.simulated_rank = rank}, [&](Alone& fabric) {
      CHECK(::getpid() == process);
      CHECK(fabric.world_size() == 4);
      CHECK(fabric.global_rank() == rank);
      return step(fabric);
    });
    REQUIRE(outcome);
    CHECK(outcome->first == real_events);
    REQUIRE(outcome->second.size() == real_values.size());
    for (std::size_t i = 0; i < real_values.size(); ++i)
      CHECK(relative_difference(outcome->second[i], real_values[i]) < 1e-6);
  }
}

TEST_CASE("simulated collectives: the other ranks hold what this one holds", "[comm][simulated]") {
  using Alone = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>, Simulated<8>>;
  REQUIRE(Alone::launch({.devices = 8, .simulated_rank = 5}, [](Alone& fabric) {
    auto& ranks = *fabric.session().world;
    CHECK(fabric.all_reduce(3.0) == 3.0);
    CHECK(fabric.all_reduce(3, weft::ReduceOp::sum) == 24);
    CHECK(fabric.all_reduce(3, weft::ReduceOp::max) == 3);
    CHECK(fabric.all_reduce(2, weft::ReduceOp::product) == 256);
    CHECK(fabric.all_gather(7) == std::vector<int>(8, 7));
    CHECK(fabric.broadcast(std::string("text")) == "text");
    auto part = at::empty({2});
    ranks.reduce_scatter_into(part, at::arange(16, at::kFloat));
    CHECK(part.equal(at::tensor({80.0f, 88.0f})));
    fabric.barrier();
    auto const group = fabric.session().connect_group("shard", {4, 5, 6, 7});
    CHECK(group->rank() == 1);
    CHECK(group->size() == 4);
    auto value = at::ones({2});
    group->all_reduce(value);
    CHECK(value.eq(4).all().item<bool>());
  }));
  auto const refused = [](weft::LaunchOptions options) {
    return Alone::launch(options, [](Alone&) {}).failures().front().message;
  };
  CHECK_THAT(refused({.devices = 2}), ContainsSubstring("Simulated<8> stands for 8 ranks, but devices = 2"));
  CHECK_THAT(refused({.simulated_rank = 8}),
             ContainsSubstring("simulated_rank = 8 is not a rank of Simulated<8>; write 0 to 7"));
}

TEST_CASE("modelled time: latency for each step of the ring, bytes over bandwidth", "[comm][simulated]") {
  using weft::comm::Event;
  using weft::comm::Kind;
  using weft::comm::modelled_us;
  std::vector<Event> const events{{"backward", Kind::all_reduce, 4, 1000},
                                  {"forward", Kind::all_gather, 4, 1000},
                                  {"x", Kind::broadcast, 1, 1000},
                                  {"x", Kind::barrier, 4, 0}};
  CHECK(modelled_us<weft::IdealLink>(events) == 0);
  CHECK(modelled_us<weft::Link<0, 2000>>(events) == Catch::Approx((6 + 3 + 3) * 2.0));
  CHECK(modelled_us<weft::Link<1'000'000'000, 0>>(events) == Catch::Approx(1.5 + 0.75));
  CHECK(modelled_us<weft::Link<1'000'000'000, 2000>>(events) == Catch::Approx(24 + 2.25));
}

TEST_CASE("simulated DDP counts what a real run counts, on the shapes of the golden curves", "[comm][simulated]") {
  using Policy = weft::DDP<weft::Bucket<100000, 20000>>;  // several buckets on the smaller shapes, too
  auto const steps = [](auto& fabric, formula::Run const& shape) {
    fabric.recorder().start();
    auto [model, optimizer] = fabric.setup(llama::LanguageModel(shape), weft::SGD{.lr = 0.1});
    for (int step = 0; step < 2; ++step) {
      for (bool const last : {false, true}) {
        auto const guard = fabric.no_backward_sync(model, !last);
        auto const [inputs, targets] = formula::tokens(0, 1, shape, fabric.global_rank());
        fabric.backward(llama::loss_of(model(inputs), targets));
      }
      fabric.clip_gradients(model, optimizer, weft::ClipNorm{0.5});
      optimizer.step();
      optimizer.zero_grad();
    }
    std::vector<std::string> lines;
    for (auto const& event : fabric.recorder().stop()) lines.push_back(line_of(event));
    return lines;
  };
  for (auto const* const name : {"tiny", "odd", "deep"})
    for (int const world : {2, 3}) {
      INFO(name << ", world " << world);
      auto const& shape = formula::shapes().at(name);
      auto const real = on_ranks<Policy>(world, [&](Run<Policy>& fabric) { return steps(fabric, shape); });
      auto const simulated = [&]<std::size_t World>(std::integral_constant<std::size_t, World>) {
        using Alone = weft::Fabric<Policy, weft::On<weft::Cpu>, Simulated<World>>;
        auto outcome = Alone::launch({.simulated_rank = 1}, [&](Alone& fabric) { return steps(fabric, shape); });
        REQUIRE(outcome);
        return *outcome;
      };
      CHECK(real.size() > 6);
      CHECK((world == 2 ? simulated(std::integral_constant<std::size_t, 2>())
                        : simulated(std::integral_constant<std::size_t, 3>())) == real);
    }
}
