// What the facade offers beside setup and collectives: seeds, turns, callbacks, marked methods, and the sharp edges of
// each.
#include "ranks.hpp"

#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/core/seeds.hpp>
#include <weft/nn/layers.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::ReduceOp;

namespace {

using Single = weft::SingleDevice;

/// A variable of the environment until the end of the scope.
struct Variable {
  Variable(char const* name, char const* value) : name(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name); }
  char const* name;
};

}  // namespace

// ---- decisions
// -------------------------------------------------------------------------------------------------------

TEST_CASE("decisions: all ranks learn whether all of them, or any, say yes", "[fabric]") {
  for (int world : {1, 2, 3, 4})
    CHECK(on_ranks(world, [](Run<>& fabric) {
      int const rank = fabric.global_rank(), last = fabric.world_size() - 1;
      expect(fabric.all_of(true) && !fabric.all_of(false) && fabric.any_of(true) && !fabric.any_of(false),
             "ranks that agree");
      expect(fabric.all_of(rank == last) == (last == 0), "all, of one");
      expect(fabric.any_of(rank == last), "any, of one");
      expect(fabric.all_of(rank != last) == false && fabric.any_of(rank != last) == (last > 0), "all but one");
      return true;
    }));
  CHECK(on_ranks<Single>(1, [](Run<Single>& fabric) { return fabric.all_of(true) && !fabric.any_of(false); }));
}

// ---- turns
// -----------------------------------------------------------------------------------------------------------

TEST_CASE("rank_zero_first: rank 0 is through before any other begins, and each gets its own result", "[fabric]") {
  for (int world : {1, 2, 4}) {
    auto const began = on_ranks(world, [](Run<>& fabric) {
      using Clock = std::chrono::steady_clock;
      auto const now = [] { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); };
      double began = 0;
      for (int turn = 0; turn < 3; ++turn) {
        auto const mine = fabric.rank_zero_first([&] {
          began = now();
          if (fabric.global_rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
          return std::make_unique<int>(10 * turn + fabric.global_rank());
        });
        expect(*mine == 10 * turn + fabric.global_rank(), "this rank's own");
      }
      int called = 0;
      fabric.rank_zero_first([&] { ++called; });
      int& same = fabric.rank_zero_first([&]() -> int& { return called; });
      expect(&same == &called && called == 1, "a function of nothing, and one of a reference");
      return fabric.all_gather(began);
    });
    for (int rank = 1; rank < world; ++rank) CHECK(began[static_cast<std::size_t>(rank)] >= began[0] + 0.03);
  }
  CHECK(on_ranks<Single>(1, [](Run<Single>& fabric) { return fabric.rank_zero_first([] { return 7; }); }) == 7);
}

TEST_CASE("rank_zero_first: a turn inside of one that fails leaves ranks in step", "[fabric]") {
  CHECK(on_ranks(2, [](Run<>& fabric) {
    static_cast<void>(message_of([&] {
      fabric.rank_zero_first([&] {
        fabric.rank_zero_first([] {});
        if (fabric.global_rank() == 0) throw std::runtime_error("no space left");
      });
    }));
    using Clock = std::chrono::steady_clock;  // one for all processes of a machine
    auto const mine = fabric.rank_zero_first([&] {
      if (fabric.global_rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return static_cast<std::int64_t>(Clock::now().time_since_epoch().count());
    });
    return fabric.broadcast(mine, 0) < fabric.broadcast(mine, 1);
  }));
}

TEST_CASE("rank_zero_first: the others do not hang when rank 0 throws, and all may go on", "[fabric]") {
  auto const start = std::chrono::steady_clock::now();
  auto const said = on_ranks(3, [](Run<>& fabric) {
    std::string said;
    int ran = 0;
    for (int turn = 0; turn < 2; ++turn)
      said = message_of([&] {
        fabric.rank_zero_first([&] {
          ++ran;
          if (fabric.global_rank() == 0) throw std::runtime_error("no space left");
        });
      });
    expect(ran == (fabric.global_rank() == 0 ? 2 : 0), "the others did not run");
    said = fabric.broadcast(said, 2);
    auto const number = message_of([&] {
      try {
        fabric.rank_zero_first([&] {
          if (fabric.global_rank() == 0) throw 3;
        });
      } catch (int thrown) {
        throw std::runtime_error("it threw " + std::to_string(thrown));
      }
    });
    expect(contains(number, fabric.global_rank() == 0 ? "it threw 3"
                                                      : "rank 0 failed: an exception that is not a std::exception"),
           number);
    expect(fabric.rank_zero_first([] { return 1; }) == 1, "the next turn works");
    return said;
  });
  CHECK(said == "weft: rank_zero_first: rank 2 of 3 did not run, because rank 0 failed: no space left");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(8));
  // Nobody catches it: the job ends, with rank 0's words.
  CHECK_THAT(failure_on_ranks(2,
                              [](Run<>& fabric) {
                                fabric.rank_zero_first([&] {
                                  if (fabric.global_rank() == 0) throw std::runtime_error("no space left");
                                });
                              }),
             ContainsSubstring("no space left"));
}

TEST_CASE("rank_zero_first: a limit, a collective inside, and rank 0 dying are errors, not hangs", "[fabric]") {
  auto const late = on_ranks(2, [](Run<>& fabric) {
    auto const said = message_of([&] {
      fabric.rank_zero_first(
          [&] {
            if (fabric.global_rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(600));
          },
          {.limit = std::chrono::milliseconds(100)});
    });
    return fabric.broadcast(said, 1);
  });
  CHECK_THAT(late, ContainsSubstring("rank 1 of 2 waited 100 ms for rank 0, which is not through"));
  auto const inside = on_ranks(2, [](Run<>& fabric) {
    auto const said = message_of([&] { fabric.rank_zero_first([&] { fabric.barrier(); }); });
    fabric.barrier();
    auto const other = fabric.broadcast(said, 1);
    expect(contains(said, "barrier, rank 0 of 2: inside of rank_zero_first"), said);
    return other;
  });
  CHECK_THAT(inside, ContainsSubstring("rank 1 of 2 did not run, because rank 0 failed: weft: barrier, rank 0 of 2: "
                                       "inside of rank_zero_first, where the other ranks wait"));
  CHECK_THAT(failure_on_ranks(2,
                              [](Run<>& fabric) {
                                fabric.rank_zero_first([&] {
                                  if (fabric.global_rank() == 0) ::_exit(3);
                                });
                              }),
             ContainsSubstring("rank 0"));
}

TEST_CASE("rank_zero_first by node: local rank 0 of each goes first", "[fabric]") {
  // Four ranks on this node, which are told that they are two nodes of two.
  CHECK(on_ranks(4, [](Run<>& fabric) {
    auto& ranks = fabric.session().ranks;
    ranks.node_rank = ranks.global_rank / 2;
    ranks.local_rank = ranks.global_rank % 2;
    auto const said = message_of([&] {
      fabric.rank_zero_first(
          [&] {
            if (ranks.global_rank == 2) throw std::runtime_error("node 1 is full");
          },
          {.local = true});
    });
    auto const expected = ranks.global_rank == 2 ? "node 1 is full"
                          : ranks.global_rank == 3
                              ? "rank 3 of 4 did not run, because local rank 0 of node 1 failed: node 1 is full"
                              : "nothing was thrown";
    expect(contains(said, expected), said);
    return true;
  }));
}

// ---- seeds
// -----------------------------------------------------------------------------------------------------------

TEST_CASE("seeds: as said, as the environment says, or 0; out of range is an error", "[fabric]") {
  auto const seeded = [](std::optional<std::int64_t> seed = {}) {
    return on_ranks<Single>(1, [=](Run<Single>& fabric) {
      auto const used = fabric.seed_everything(seed);
      return std::tuple(used, fabric.session().seed, at::rand({3}));
    });
  };
  auto const draws_of = [](std::uint64_t seed) {
    torch::manual_seed(seed);
    return at::rand({3});
  };
  auto const [used, kept, draws] = seeded(42);
  CHECK((used == 42 && kept == 42));
  CHECK(draws.equal(draws_of(42)));
  CHECK(std::get<0>(seeded()) == 0);
  {
    Variable const seed("PL_GLOBAL_SEED", "123");
    CHECK(std::get<0>(seeded()) == 123);
    CHECK(std::get<0>(seeded(7)) == 7);                          // what is said comes first
    CHECK(std::string(std::getenv("PL_GLOBAL_SEED")) == "123");  // read, not written
  }
  CHECK(std::getenv("PL_GLOBAL_SEED") == nullptr);
  auto const refusal = [](std::optional<std::int64_t> seed) {
    return on_ranks<Single>(1, [=](Run<Single>& fabric) { return message_of([&] { fabric.seed_everything(seed); }); });
  };
  CHECK(refusal(-1) == "weft: seed_everything: seed -1 is out of range; write 0 to 4294967295");
  CHECK(refusal(std::int64_t{1} << 32) ==
        "weft: seed_everything: seed 4294967296 is out of range; write 0 to 4294967295");
  Variable const seed("PL_GLOBAL_SEED", "many");
  CHECK(refusal({}) == "weft: seed_everything: PL_GLOBAL_SEED = \"many\" is not a whole number; correct or unset it");
}

TEST_CASE("seeds per rank: dropout masks differ, start weights and sample order do not", "[fabric]") {
  auto const run = [](bool per_rank) {
    return on_ranks(3, [=](Run<>& fabric) {
      fabric.seed_everything(5, {.per_rank = per_rank});
      auto const draws = fabric.all_gather(at::rand({4}));
      auto model = fabric.setup(torch::nn::Linear(3, 2));
      auto loader = fabric.setup_dataloader(torch::data::datasets::TensorDataset(at::arange(12)),
                                            {.batch_size = 4, .shuffle = true});
      std::vector<at::Tensor> seen;
      for (auto const& batch : loader) seen.push_back(batch.data);
      return std::tuple(draws, fabric.all_gather(model->weight.detach()), fabric.all_gather(at::cat(seen)));
    });
  };
  auto const [alike, alike_weights, alike_order] = run(false);
  auto const [differing, weights, order] = run(true);
  CHECK((alike[0].equal(alike[1]) && alike[0].equal(alike[2])));
  CHECK_FALSE(
      (differing[0].equal(differing[1]) || differing[0].equal(differing[2]) || differing[1].equal(differing[2])));
  CHECK(differing[0].equal(alike[0]));  // rank 0 keeps the seed
  CHECK(weights.equal(alike_weights));
  CHECK((weights[0].equal(weights[1]) && weights[0].equal(weights[2])));
  CHECK(order.equal(alike_order));
  torch::manual_seed(weft::core::rank_seed(5, 2));
  CHECK(differing[2].equal(at::rand({4})));
}

// ---- callbacks
// -------------------------------------------------------------------------------------------------------

namespace {

struct EpochEnd {
  int epoch;
  double loss;
};
struct Unheard {};

struct Printer {
  void on(EpochEnd const& it) { text += "epoch " + std::to_string(it.epoch) + ";"; }
  void on(weft::AfterSetup const& it) {
    text += "setup of " + it.module.name() + " with " + std::to_string(it.table.size()) + ";";
  }
  std::string text;
};
struct Counter {
  void on(weft::AfterOptimizerStep const& it) {
    rates += std::to_string(it.optimizer.param_groups()[0].options().get_lr()).substr(0, 3) + ";";
  }
  std::string rates;
};
struct Everything {
  template <class Event>
  void on(Event const&, auto& fabric) {
    count += fabric.world_size();
  }
  int count = 0;
};
/// A struct that opens itself up.
struct Parts {
  std::map<std::string, std::optional<at::Tensor>> tensors;
  int kept = 0;
};
template <class F>
void weft_visit(Parts& parts, F&& f) {
  f(parts.tensors);
}
struct Strict {
  void on(EpochEnd const& it) {
    if (!std::isfinite(it.loss)) throw std::runtime_error("the loss is not a number");
  }
};

}  // namespace

TEST_CASE("callbacks hear of setup, of steps and of the program's own events", "[fabric]") {
  CHECK(on_ranks(2, [](Run<>& fabric) {
    Printer printer;
    auto callbacks = fabric.callbacks(printer, Counter(), Everything());
    static_assert(decltype(callbacks)::hear<EpochEnd> && decltype(callbacks)::hear<weft::AfterOptimizerStep>);
    auto both = fabric.setup(torch::nn::Linear(2, 1), weft::SGD{.lr = 0.5});
    auto& model = std::get<0>(both);
    auto& optimizer = std::get<1>(both);
    auto quiet = fabric.setup_module(torch::nn::Linear(2, 1));  // as Fabric has it: setup alone is told
    auto other = fabric.setup_optimizers(quiet, weft::AdamW{.lr = 0.1});
    expect(printer.text == "setup of torch::nn::LinearImpl with 2;", printer.text);
    fabric.backward(model(at::ones({1, 2})).sum());
    optimizer.step();
    other.step();
    torch::optim::StepLR schedule(optimizer, 1, 0.5);
    optimizer.step([&] { return model(at::ones({1, 2})).sum(); });
    callbacks.call(EpochEnd{1, 0.5});
    callbacks.call(EpochEnd{2, 0.25});
    expect(printer.text == "setup of torch::nn::LinearImpl with 2;epoch 1;epoch 2;", printer.text);
    expect(callbacks.get<Counter>().rates == "0.5;0.1;0.5;", callbacks.get<Counter>().rates);
    expect(callbacks.get<Everything>().count == 2 * 6, "one setup, three steps, two epochs");
    return true;
  }));
}

TEST_CASE("callbacks: exceptions pass, order is kept, scopes end, and whoever goes first takes nobody along",
          "[fabric]") {
  CHECK(on_ranks<Single>(1, [](Run<Single>& fabric) {
    std::string order;
    struct Note {
      void on(EpochEnd const&) { order += name; }
      std::string& order;
      char name;
    };
    auto model = fabric.setup_module(torch::nn::Linear(1, 1));
    std::optional<weft::Optimizer<typename decltype(fabric.setup_optimizers(model, weft::SGD{.lr = 0.1}))::TorchType>>
        optimizer;
    Counter counter;
    {
      auto callbacks = fabric.callbacks(Note{order, 'a'}, Strict(), Note{order, 'b'}, counter);
      optimizer.emplace(fabric.setup_optimizers(model, weft::SGD{.lr = 0.1}));
      callbacks.call(EpochEnd{1, 1.0});
      expect(contains(message_of([&] { callbacks.call(EpochEnd{2, NAN}); }), "the loss is not a number"),
             "the callback's own exception");
      expect(order == "aba", order);
      optimizer->step();
    }
    optimizer->step();  // its callbacks are gone
    expect(counter.rates == "0.1;", counter.rates);
    auto again = fabric.callbacks(counter);
    {
      auto more = fabric.callbacks(Everything());
      optimizer->step();
      expect(counter.rates == "0.1;0.1;" && more.get<Everything>().count == 1, "both sets hear");
    }
    {
      struct Ender {
        void on(weft::AfterOptimizerStep const&) { end(); }
        std::function<void()> end;
      };
      using Kept = decltype(fabric.callbacks(counter));
      std::unique_ptr<Kept> later;
      auto ender = fabric.callbacks(Ender{[&] { later.reset(); }});
      later.reset(new Kept(fabric.callbacks(counter)));
      optimizer->step();
      expect(!later && counter.rates == "0.1;0.1;0.1;", "whom another callback has ended does not hear");
    }
    fabric.teardown();
    optimizer->step();
    return counter.rates == "0.1;0.1;0.1;0.1;";
  }));
  // The fabric goes first.
  std::optional<weft::Optimizer<torch::optim::SGD>> optimizer;
  Counter counter;
  on_ranks<Single>(1, [&](Run<Single>& fabric) {
    auto callbacks = fabric.callbacks(counter);
    auto [model, made] = fabric.setup(torch::nn::Linear(1, 1), torch::optim::SGD(std::vector<at::Tensor>{}, 0.1));
    made.step();
    optimizer.emplace(std::move(made));
    return 0;
  });
  optimizer->step();
  CHECK(counter.rates == "0.1;");
}

// ---- marked methods
// --------------------------------------------------------------------------------------------------

namespace {

struct StepsImpl : torch::nn::Module {
  StepsImpl() { layer = register_module("layer", weft::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false))); }
  at::Tensor forward(at::Tensor const& x) { return layer(x); }
  at::Tensor training_step(at::Tensor const& x, double scale = 1) { return forward(x).sum() * scale; }
  at::Tensor validation_step(at::Tensor const& x) { return forward(x); }
  at::Tensor predict_step(at::Tensor& x) { return x = forward(x); }
  void test_step(at::Tensor const& x, std::vector<at::Tensor>& all) { all.push_back(forward(x)); }
  weft::nn::Linear layer = nullptr;
};
TORCH_MODULE(Steps);

}  // namespace

TEST_CASE("NUM-33: marked methods run as the model's forward; past the model they are refused", "[fabric][known]") {
  auto const gradients = on_ranks(2, [](Run<>& fabric) {
    auto model = fabric.setup(Steps());
    auto const x = at::full({1, 2}, fabric.global_rank() + 1.0);
    fabric.backward(model.training_step(x, 2));
    auto const by_step = model->layer->weight.grad().clone();
    model->layer->weight.mutable_grad().reset();
    fabric.backward(model.call<&StepsImpl::training_step>(x, 2));
    expect(by_step.equal(model->layer->weight.grad()), "call<> is the same");
    auto input = x.clone();
    expect(model.validation_step(x).equal(model(x)) && model.predict_step(input).equal(input),
           "values, and arguments by reference");
    std::vector<at::Tensor> all;
    model.test_step(x, all);
    expect(all.size() == 1, "a step that returns nothing");
    expect(
        model.enter([](StepsImpl& steps, at::Tensor const& of) { return steps.layer(of) + 1; }, x).equal(model(x) + 1),
        "code of one's own");
    expect(contains(message_of([&] { model->training_step(x); }), "model(...)"), "past the model");
    return fabric.all_gather(by_step);
  });
  CHECK(gradients.equal(at::full({2, 2, 2}, 3.0)));
}

TEST_CASE("marked methods get their arguments as the precision has them", "[fabric]") {
  using InBf16 = weft::Fabric<Single, weft::Bf16, weft::On<weft::Cpu>>;
  auto const outcome = InBf16::launch([](InBf16& fabric) {
    auto model = fabric.setup(Steps());
    fabric.backward(model.training_step(at::ones({1, 2}), 2));  // fp32, which the weights are not
    expect(model->layer->weight.grad().eq(2).all().item<bool>(), "gradients");
  });
  CHECK(outcome.exit_code() == 0);
}

// ---- members
// ---------------------------------------------------------------------------------------------------------

TEST_CASE("CPP-05: a member that left the registry is refused with its name; one that is registered anew is not",
          "[fabric][known]") {
  struct NetImpl : torch::nn::Module {
    NetImpl() {
      in = register_module("in", torch::nn::Linear(2, 2));
      norm = register_module("norm", weft::nn::BatchNorm1d(2));
      out = register_module("out", torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)));
    }
    at::Tensor forward(at::Tensor const& x) { return out(norm(in(x))); }
    torch::nn::Linear in = nullptr, out = nullptr;
    weft::nn::BatchNorm1d norm = nullptr;
  };
  auto const said = [](auto change) {
    return on_ranks<Single>(1, [=](Run<Single>& fabric) {
      auto net = std::make_shared<NetImpl>();
      change(*net);
      return message_of([&] { fabric.setup(net); });
    });
  };
  CHECK_THAT(
      said([](NetImpl& net) { net.in->weight = at::zeros({2, 2}).requires_grad_(); }),
      ContainsSubstring("weft: setup: the member weight of in is not the tensor that is registered as in.weight") &&
          ContainsSubstring("layer->weight.copy_(values)"));
  CHECK_THAT(said([](NetImpl& net) { net.norm->bias = net.in->bias; }),
             ContainsSubstring("the member bias of norm is not"));
  CHECK_THAT(said([](NetImpl& net) { net.out->bias = at::zeros({2}); }),
             ContainsSubstring("the member bias of out is not"));
  CHECK_THAT(said([](NetImpl& net) { net.in->bias.reset(); }), ContainsSubstring("the member bias of in is not"));
  CHECK(said([](NetImpl& net) { net.out->weight = net.out->register_parameter("tied", net.in->weight); }) ==
        "nothing was thrown");
  CHECK(said([](NetImpl& net) { net.in->weight.set_data(at::zeros({2, 2})); }) == "nothing was thrown");
  CHECK(said([](NetImpl& net) { net.to(at::kDouble); }) == "nothing was thrown");
}

// ---- what was noticed
// ------------------------------------------------------------------------------------------------

TEST_CASE("what a value shares with others is not changed by reducing or gathering it", "[fabric]") {
  CHECK(on_ranks(2, [](Run<>& fabric) {
    auto const mine = std::make_shared<at::Tensor>(at::full({2}, fabric.global_rank(), at::kFloat));
    auto const kept = *mine;
    std::map<std::string, std::shared_ptr<at::Tensor>> const nested{{"a", mine}, {"none", nullptr}};
    auto const sum = fabric.all_reduce(mine, ReduceOp::sum);
    auto const sums = fabric.all_reduce(nested, ReduceOp::sum);
    auto const all = fabric.all_gather(mine);
    expect(sum->eq(1).all().item<bool>() && sums.at("a")->equal(*sum) && !sums.at("none") &&
               all->sizes() == at::IntArrayRef({2, 2}),
           "results");
    expect(mine->is_same(kept) && kept.eq(fabric.global_rank()).all().item<bool>() && nested.at("a") == mine,
           "the input");
    auto const number = std::make_shared<double const>(fabric.global_rank());
    expect(*fabric.all_reduce(number) == 0.5 && *number == fabric.global_rank(), "a shared number");
    return true;
  }));
}

TEST_CASE("a handle whose wait threw throws again", "[fabric]") {
  CHECK_THAT(failure_on_ranks(2,
                              [](Run<>& fabric) {
                                std::string said;
                                if (fabric.global_rank() == 1) {
                                  weft::comm::Communicator::TimeLimit const soon(*fabric.world(),
                                                                                 std::chrono::milliseconds(100));
                                  auto pending = fabric.world()->receive_into_async(at::zeros({2}), 0);
                                  said = message_of([&] { pending.wait(); });
                                  auto moved = std::move(pending);
                                  expect(contains(said, "receive_into") && message_of([&] { moved.wait(); }) == said,
                                         said + " again: " + message_of([&] { moved.wait(); }));
                                  throw std::runtime_error("as expected");  // the group is of no use any more
                                }
                                std::this_thread::sleep_for(std::chrono::milliseconds(500));
                              }),
             ContainsSubstring("as expected"));
}

TEST_CASE("a variable of Popen that nobody wrote for this process says so", "[launch]") {
  auto const said = [](std::string const& value) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid_t const process = ::fork();
    if (process == 0) {
      ::setenv("WEFT_POPEN_RANK", value.c_str(), 1);
      auto const text = message_of([] { static_cast<void>(weft::launch::popen_rank()); });
      static_cast<void>(!::write(ends[1], text.data(), text.size()));
      ::_exit(0);
    }
    ::close(ends[1]);
    std::string text(4096, '\0');
    auto const length = ::read(ends[0], text.data(), text.size());
    ::close(ends[0]);
    ::waitpid(process, nullptr, 0);
    return text.substr(0, static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  };
  CHECK_THAT(said("0 2 29500 1 1 0 0"),
             ContainsSubstring("says that process 1 started this one") && ContainsSubstring("unset the variable"));
  CHECK_THAT(said("0 2 29500 999 " + std::to_string(::getpid()) + " 0 0"),
             ContainsSubstring("reads its descriptor 999"));
  CHECK_THAT(said("yes"), ContainsSubstring("was not written by weft; unset it"));
  CHECK(said("0 2 29500 1 " + std::to_string(::getpid()) + " 0 0") == "nothing was thrown");
}

TEST_CASE("Lightning's variables for its command line do not change what a program says", "[launch]") {
  Variable const devices("LT_DEVICES", "3"), strategy("LT_STRATEGY", "fsdp"), precision("LT_PRECISION", "16-mixed"),
      nodes("LT_NUM_NODES", "2");
  CHECK(on_ranks(2, [](Run<>& fabric) { return fabric.world_size(); }) == 2);
}

TEST_CASE("ranks of a node share its cores, unless the environment says how", "[launch]") {
  // In a rank: a process that has had several threads starts none by Fork.
  CHECK(on_ranks(1, [](Run<>&) {
    int const cores = static_cast<int>(std::thread::hardware_concurrency());
    auto const threads = [](int before, int ranks) {
      at::set_num_threads(before);
      weft::launch::share_cores(ranks);
      return at::get_num_threads();
    };
    ::setenv("OMP_NUM_THREADS", "64", 1);
    expect(threads(64, 2) == 64, "what the environment says");
    ::unsetenv("OMP_NUM_THREADS");
    expect(threads(64, 2) == std::max(1, cores / 2) && threads(64, 1000) == 1, "a part of the cores");
    expect(threads(64, 1) == 64 && threads(1, 2) == 1, "one rank has all, and less is nobody's harm");
    return true;
  }));
}

TEST_CASE("to_device moves tensors in structs, and modules", "[fabric]") {
  CHECK(on_ranks<Single>(1, [](Run<Single>& fabric) {
    fabric.session().device = at::kMeta;  // another device, on any machine
    auto const moved =
        fabric.to_device(std::tuple(at::ones({2}), std::vector<at::Tensor>{at::ones({1})}, std::string("text"), 4));
    expect(std::get<0>(moved).is_meta() && std::get<1>(moved)[0].is_meta() && std::get<2>(moved) == "text" &&
               std::get<3>(moved) == 4,
           "a tuple");
    Parts const parts{{{"a", at::ones({2})}, {"none", std::nullopt}}, 3};
    auto const there = fabric.to_device(parts);
    expect(there.tensors.at("a")->is_meta() && !there.tensors.at("none") && there.kept == 3 &&
               parts.tensors.at("a")->is_cpu(),
           "a struct");
    fabric.session().device = at::kCPU;
    torch::nn::Linear layer(2, 2);
    expect(fabric.to_device(layer).ptr() == layer.ptr(), "a module, itself");  // LibTorch moves none to Meta
    expect(contains(message_of([&] { fabric.to_device(torch::nn::Linear(nullptr)); }),
                    "to_device: the module holder is empty"),
           "no module");
    return true;
  }));
}
