#include "ranks.hpp"

#include <cerrno>
#include <cstdlib>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/nn/linear.hpp>
#include <weft/nn/normalization.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::ReduceOp;

namespace {

using Single = weft::SingleDevice;

struct Batch {
  at::Tensor tokens;
  std::vector<at::Tensor> images;
};
template <class F>
void weft_visit(Batch& batch, F&& f) {
  f(batch.tokens);
  f(batch.images);
}

std::filesystem::path scratch_file(std::string const& name) {
  return std::filesystem::temp_directory_path() / ("weft-" + std::to_string(::getpid()) + "-" + name);
}

}  // namespace

TEST_CASE("launch returns rank 0's value: numbers, strings, tensors and containers of them", "[fabric]") {
  auto const check = []<class Strategy>(std::type_identity<Strategy>, int world) {
    auto const rank_sum = on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
      using Value = std::tuple<int, std::string, at::Tensor, std::map<std::string, std::vector<double>>,
                               std::optional<bool>, std::array<float, 2>>;
      return Value{fabric.world_size(),        "text",       at::arange(6).reshape({2, 3}),
                   {{"a", {1, 2}}, {"b", {}}}, std::nullopt, {1, 2}};
    });
    CHECK(std::get<0>(rank_sum) == world);
    CHECK(std::get<1>(rank_sum) == "text");
    CHECK(std::get<2>(rank_sum).equal(at::arange(6).reshape({2, 3})));
    CHECK(std::get<3>(rank_sum).at("a") == std::vector<double>{1, 2});
    CHECK_FALSE(std::get<4>(rank_sum));
    CHECK(std::get<5>(rank_sum)[1] == 2);
  };
  check(std::type_identity<Single>(), 1);
  for (int world : {1, 2, 3}) check(std::type_identity<weft::DDP<>>(), world);
}

TEST_CASE("a large tensor arrives whole", "[fabric]") {
  auto const large = on_ranks(2, [](Run<>&) { return at::arange(3'000'000, at::kDouble); });
  CHECK(large.equal(at::arange(3'000'000, at::kDouble)));
}

TEST_CASE("a function without result, and an outcome's exit code", "[fabric]") {
  auto const good = Run<>::launch({.devices = 2}, [](Run<>& fabric) { fabric.barrier(); });
  CHECK(static_cast<bool>(good));
  CHECK(good.exit_code() == 0);
  auto bad = Run<Single>::launch([](Run<Single>&) -> int { throw std::runtime_error("no"); });
  CHECK(bad.exit_code() == 1);
  CHECK(bad.failures().at(0).message == "weft: rank 0 failed: no");
  CHECK_THROWS_AS(bad.value(), weft::LaunchError);
}

TEST_CASE("ranks and sizes", "[fabric]") {
  auto const seen = on_ranks(3, [](Run<>& fabric) {
    expect(fabric.is_global_zero() == (fabric.global_rank() == 0), "rank 0 is global zero");
    return fabric.all_gather(
        torch::tensor({fabric.global_rank(), fabric.local_rank(), fabric.node_rank(), fabric.world_size()}));
  });
  CHECK(seen.equal(torch::tensor({{0, 0, 0, 3}, {1, 1, 0, 3}, {2, 2, 0, 3}})));
}

TEST_CASE("all_reduce takes tensors, numbers and containers, and leaves its input alone", "[fabric]") {
  for (int world : {1, 2, 3, 4}) {
    auto const ok = on_ranks(world, [](Run<>& fabric) {
      double const n = fabric.world_size(), mean = (n - 1) / 2;
      int const rank = fabric.global_rank();
      expect(fabric.all_reduce(static_cast<double>(rank)) == mean, "a double averages");
      expect(fabric.all_reduce(rank, ReduceOp::sum) == static_cast<int>(n * mean), "an int sums");
      expect(fabric.all_reduce(int64_t{1} << 53, ReduceOp::max) == int64_t{1} << 53, "a large integer is exact");
      auto const tensor = at::full({2}, rank, at::kFloat);
      expect(fabric.all_reduce(tensor).eq(mean).all().item<bool>(), "a tensor averages");
      expect(tensor.eq(rank).all().item<bool>(), "the input is as before");
      auto const nested = fabric.all_reduce(std::map<std::string, std::pair<at::Tensor, double>>{{"x", {tensor, rank}}},
                                            ReduceOp::sum);
      expect(nested.at("x").first.eq(n * mean).all().item<bool>() && nested.at("x").second == n * mean,
             "a nested value sums");
      auto const batch = fabric.all_reduce(Batch{tensor, {tensor, tensor}}, ReduceOp::max);
      expect(batch.images.at(1).eq(n - 1).all().item<bool>(), "a user's struct reduces");
      auto const example = fabric.all_reduce(torch::data::Example<>(tensor, tensor), ReduceOp::max);
      expect(example.data.eq(n - 1).all().item<bool>() && example.target.eq(n - 1).all().item<bool>(),
             "an example reduces");
      expect(contains(message_of([&] { fabric.all_reduce(3); }), "an average of integers would have to round"),
             "no integer average");
      return true;
    });
    CHECK(ok);
  }
}

TEST_CASE("COL-05: the facade leaves its input alone, a communicator reduces in place, whatever the operation",
          "[fabric][known]") {
  CHECK(on_ranks(2, [](Run<>& fabric) {
    auto const mine = [&] {
      return fabric.global_rank() == 0 ? at::tensor({2.f, 4.f, 6.f}) : at::tensor({4.f, 6.f, 8.f});
    };
    std::vector<std::pair<ReduceOp, at::Tensor>> const expected{{ReduceOp::sum, at::tensor({6.f, 10.f, 14.f})},
                                                                {ReduceOp::average, at::tensor({3.f, 5.f, 7.f})},
                                                                {ReduceOp::min, at::tensor({2.f, 4.f, 6.f})},
                                                                {ReduceOp::max, at::tensor({4.f, 6.f, 8.f})},
                                                                {ReduceOp::product, at::tensor({8.f, 24.f, 48.f})}};
    for (auto const& [op, result] : expected) {
      auto const input = mine();
      expect(fabric.all_reduce(input, op).equal(result) && input.equal(mine()), "a new tensor from the facade");
      fabric.world()->all_reduce(input, op);
      expect(input.equal(result), "the same one from a communicator");
    }
    return true;
  }));
}

TEST_CASE("COL-05: the mean divides by the number of ranks, and integers are refused", "[fabric][known]") {
  auto const mean = on_ranks(2, [](Run<>& fabric) {
    return fabric.all_reduce(fabric.global_rank() == 0 ? at::tensor({2.f, 4.f, 6.f}) : at::tensor({4.f, 6.f, 8.f}));
  });
  CHECK(mean.equal(at::tensor({3.f, 5.f, 7.f})));
  CHECK_THAT(failure_on_ranks(
                 2, [](Run<>& fabric) { fabric.all_reduce(torch::tensor({3 + fabric.global_rank()}, at::kLong)); }),
             ContainsSubstring("would have to round"));
}

TEST_CASE("all_gather adds a dimension of ranks, also for one process", "[fabric]") {
  auto const of_single = on_ranks<Single>(1, [](Run<Single>& fabric) { return fabric.all_gather(at::ones({2, 3})); });
  CHECK(of_single.sizes() == at::IntArrayRef({1, 2, 3}));
  for (int world : {1, 2, 4}) {
    auto const [tensor, numbers] = on_ranks(world, [](Run<>& fabric) {
      return std::pair(fabric.all_gather(std::vector<at::Tensor>{at::full({2}, fabric.global_rank())}).at(0),
                       fabric.all_gather(fabric.global_rank() * 1.5));
    });
    CHECK(tensor.equal(at::arange(world, at::kFloat).unsqueeze(1).expand({world, 2})));
    REQUIRE(numbers.size() == static_cast<std::size_t>(world));
    CHECK(numbers.back() == 1.5 * (world - 1));
  }
}

TEST_CASE("broadcast takes anything that can travel, of any size on the other ranks", "[fabric]") {
  auto const ok = on_ranks(3, [](Run<>& fabric) {
    int const rank = fabric.global_rank();
    expect(fabric.broadcast(std::string(static_cast<std::size_t>(rank + 1), 'x'), 2) == "xxx", "rank 2's string");
    expect(
        fabric.broadcast(rank == 1 ? std::vector<double>{1, 2} : std::vector<double>{}, 1) == std::vector<double>{1, 2},
        "rank 1's list");
    expect(fabric.broadcast(at::full({rank + 1}, rank)).equal(at::zeros({1})), "rank 0's tensor");
    expect(fabric.broadcast(std::string()) == "", "an empty string");
    expect(contains(message_of([&] { fabric.broadcast(1, 3); }), "source 3 is not a rank; write 0 to 2"),
           "a source that is no rank");
    return true;
  });
  CHECK(ok);
  CHECK(on_ranks<Single>(1, [](Run<Single>& fabric) { return fabric.broadcast(7); }) == 7);
}

TEST_CASE("seed_everything seeds alike on every rank, and loaders start from it", "[fabric]") {
  auto const draws = on_ranks(2, [](Run<>& fabric) {
    fabric.seed_everything(42);
    return fabric.all_gather(at::rand({4}));
  });
  CHECK(draws[0].equal(draws[1]));
  torch::manual_seed(42);
  CHECK(draws[0].equal(at::rand({4})));
}

TEST_CASE("a data loader gives each rank its share, reshuffled by epoch", "[fabric]") {
  auto const all = on_ranks(2, [](Run<>& fabric) {
    fabric.seed_everything(1);
    auto loader = fabric.setup_dataloader(torch::data::datasets::TensorDataset(at::arange(8))
                                              .map(torch::data::transforms::Stack<torch::data::TensorExample>()),
                                          {.batch_size = 2, .shuffle = true});
    std::vector<at::Tensor> epochs;
    for (int epoch = 0; epoch < 3; ++epoch) {
      std::vector<at::Tensor> seen;
      for (auto const& batch : loader) seen.push_back(batch.data);
      epochs.push_back(at::cat(seen));
    }
    return fabric.all_gather(at::stack(epochs));
  });
  for (int epoch = 0; epoch < 3; ++epoch)
    CHECK(std::get<0>(at::cat({all[0][epoch], all[1][epoch]}).sort()).equal(at::arange(8)));
  CHECK_FALSE(all.select(1, 0).equal(all.select(1, 1)));
  CHECK_FALSE(all.select(1, 1).equal(all.select(1, 2)));
}

TEST_CASE("weights: saved by rank 0, loaded by all, refused with names", "[fabric]") {
  auto const path = scratch_file("weights.safetensors");
  auto const saved = on_ranks(2, [&](Run<>& fabric) {
    torch::manual_seed(static_cast<uint64_t>(fabric.global_rank()));
    auto model = fabric.setup(torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4)));
    model(at::ones({5, 3}));
    fabric.save_weights(path, model);
    return std::pair(model->parameters()[0].detach(), model->buffers()[0]);
  });
  auto const loaded = on_ranks(3, [&](Run<>& fabric) {
    auto model = fabric.setup(torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4)));
    fabric.load_weights(path, model);
    return std::pair(fabric.all_gather(model->parameters()[0].detach()), fabric.all_gather(model->buffers()[0]));
  });
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(loaded.first[rank].equal(saved.first));
    CHECK(loaded.second[rank].equal(saved.second));
  }
  CHECK_THAT(failure_on_ranks(2,
                              [&](Run<>& fabric) {
                                fabric.load_weights(path, fabric.setup(torch::nn::Sequential(torch::nn::Linear(3, 4))));
                              }),
             ContainsSubstring("unexpected in it: 1."));
  CHECK_THAT(failure_on_ranks(2,
                              [&](Run<>& fabric) {
                                auto model = fabric.setup(torch::nn::Sequential(torch::nn::Linear(3, 4)));
                                fabric.save_weights(path / "below" / "a-file", model);
                              }),
             ContainsSubstring("below"));
  std::filesystem::remove(path);
}

TEST_CASE("misuse is answered: optimizers of another model, bad devices, launching twice", "[fabric]") {
  CHECK_THAT(
      failure_on_ranks(2,
                       [](Run<>& fabric) {
                         torch::nn::Linear one(2, 2), other(3, 2);
                         fabric.setup(one, torch::optim::SGD(other->parameters(), 0.1));
                       }),
      ContainsSubstring("the optimizer's parameter 0 of group 0, of shape [2, 3], does not belong to this model"));
  CHECK_THROWS_WITH(Run<Single>::launch({.devices = 2}, [](Run<Single>&) {}).value(),
                    ContainsSubstring("SingleDevice runs one process, but devices = 2; write DDP<>"));
  CHECK_THROWS_WITH(Run<>::launch({.devices = "0,1"}, [](Run<>&) {}).value(),
                    ContainsSubstring("lists device indices, but ranks run on the CPU"));
  CHECK_THROWS_WITH(Run<>::launch({.devices = -1}, [](Run<>&) {}).value(),
                    ContainsSubstring("-1 asks for all accelerators"));
  CHECK_THROWS_WITH(Run<>::launch({.num_nodes = 2}, [](Run<>&) {}).value(), ContainsSubstring("num_nodes = 2"));
  CHECK_THAT(
      failure_on_ranks(2,
                       [](Run<>& fabric) {
                         auto [one, of_one] = fabric.setup(torch::nn::Linear(2, 2), weft::SGD{.lr = 0.1});
                         auto other = fabric.setup(torch::nn::Linear(3, 2));
                         fabric.clip_gradients(other, of_one, weft::ClipNorm{1.0});
                       }),
      ContainsSubstring(
          "clip_gradients: the optimizer's parameter 0 of group 0, of shape [2, 2], does not belong to this model"));
  CHECK(Run<Single>::launch([](Run<Single>&) { throw 7; }).failures().at(0).message ==
        "weft: rank 0 failed: an exception that is not a std::exception");
  auto const nested = on_ranks(
      2, [](Run<>&) { return message_of([] { static_cast<void>(Run<>::launch([](Run<>&) {})); }); });
  CHECK_THAT(nested, ContainsSubstring("launch once"));
  auto const in_single = on_ranks<Single>(
      1, [](Run<Single>&) { return message_of([] { static_cast<void>(Run<>::launch([](Run<>&) {})); }); });
  CHECK_THAT(in_single, ContainsSubstring("launch once"));
  // Nothing was left behind: the next launch works.
  CHECK(on_ranks(2, [](Run<>& fabric) { return fabric.world_size(); }) == 2);
}

TEST_CASE("a backward of several ranks without a model that is set up is an error", "[fabric]") {
  on_ranks(2, [](Run<>& fabric) {
    torch::nn::Linear forgotten(2, 1);
    expect(contains(message_of([&] { fabric.backward(forgotten->forward(at::ones({1, 2})).sum()); }),
                    "no model of this fabric was set up, so each of its 2 ranks would train alone"),
           "said at the first backward");
    return 0;
  });
}

TEST_CASE("the straight-line form: launch comes first, and once", "[fabric]") {
  Run<Single> fabric;
  CHECK_THROWS_WITH(fabric.all_reduce(1.0), ContainsSubstring("call fabric.launch() before using the fabric"));
  CHECK_THROWS_WITH(fabric.setup(torch::nn::Linear(2, 2)), ContainsSubstring("call fabric.launch() before"));
  fabric.launch();
  CHECK_THROWS_WITH(fabric.launch(), ContainsSubstring("launch once"));
  CHECK_THROWS_WITH(Run<Single>().launch(), ContainsSubstring("launch once"));
  auto [model, optimizer] = fabric.setup(torch::nn::Linear(2, 1), torch::optim::SGD(std::vector<at::Tensor>{}, 0.1));
  fabric.backward(model(at::ones({1, 2})).sum());
  CHECK(model->weight.grad().equal(at::ones({1, 2})));
  fabric.teardown();
  fabric.teardown();
  CHECK_THROWS_WITH(fabric.barrier(), ContainsSubstring("torn down"));
  CHECK(model(at::ones({1, 2})).defined());  // the model outlives the fabric
}

TEST_CASE("models and optimizers outlive teardown", "[fabric]") {
  auto const ok = on_ranks(2, [](Run<>& fabric) {
    auto [model, optimizer] = fabric.setup(torch::nn::Linear(2, 1), weft::SGD{.lr = 0.1});
    fabric.teardown();
    auto const loss = model(at::ones({1, 2})).sum();
    loss.backward();  // nobody to average with any more: local
    optimizer.step();
    return true;
  });
  CHECK(ok);
}

TEST_CASE("optimizers: described, moved in, borrowed; one update rule", "[fabric]") {
  auto const weights = on_ranks<Single>(1, [](Run<Single>& fabric) {
    std::vector<at::Tensor> weights;
    auto const train = [&](auto make) {
      torch::manual_seed(1);
      torch::nn::Linear module(3, 2);
      auto [model, optimizer] = make(module);
      for (int step = 0; step < 3; ++step) {
        fabric.backward(model(at::ones({1, 3})).pow(2).sum());
        optimizer.step();
        optimizer.zero_grad();
      }
      weights.push_back(module->weight.detach().clone());
    };
    train([&](auto& module) { return fabric.setup(module, weft::SGD{.lr = 0.1}); });
    train([&](auto& module) { return fabric.setup(module, torch::optim::SGD(module->parameters(), 0.1)); });
    std::optional<torch::optim::SGD> kept;
    train([&](auto& module) { return fabric.setup(module, kept.emplace(module->parameters(), 0.1)); });
    train([&](auto& module) {
      auto model = fabric.setup_module(module);
      return std::tuple{model, fabric.setup_optimizers(model, weft::SGD{.lr = 0.1})};
    });
    return weights;
  });
  for (std::size_t i = 1; i < weights.size(); ++i) CHECK(weights[i].equal(weights[0]));
}

TEST_CASE("two models and two optimizers, each with its own gradients", "[fabric]") {
  auto const gradients = on_ranks(2, [](Run<>& fabric) {
    auto [first, first_optimizer] = fabric.setup(Scalar(), weft::SGD{.lr = 1.0});
    auto [second, second_optimizer] = fabric.setup(Scalar(), weft::SGD{.lr = 1.0});
    double const weight = fabric.global_rank() + 1;
    fabric.backward(first(weight) * second(2.0));
    return at::stack({first->w.grad(), second->w.grad()});
  });
  CHECK(gradients.equal(at::tensor({3.0f, 3.0f})));
}

TEST_CASE("clipping: by norm, equal on all ranks and to one process; by value; refused before anything changes",
          "[fabric]") {
  struct PairImpl : torch::nn::Module {
    PairImpl() {
      a = register_parameter("a", torch::zeros({1}));
      b = register_parameter("b", torch::zeros({1}));
    }
    at::Tensor forward(double of_a, double of_b) { return (a * of_a + b * of_b).sum(); }
    at::Tensor a, b;
  };
  for (int world : {1, 2, 3}) {
    auto const seen = on_ranks(world, [](Run<>& fabric) {
      auto [model, optimizer] = fabric.setup(std::make_shared<PairImpl>(), weft::SGD{.lr = 1.0});
      fabric.backward(model(3.0, 4.0));
      auto const norm = fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0});
      auto const by_norm = at::stack({norm, model->a.grad()[0], model->b.grad()[0]});
      fabric.clip_gradients(model, optimizer, weft::ClipValue{0.7});
      auto const by_value = at::stack({model->a.grad()[0], model->b.grad()[0]});
      optimizer.zero_grad();
      fabric.backward(model(fabric.global_rank() == 0 ? INFINITY : 1.0, 2.0));
      expect(contains(message_of([&, &model = model, &optimizer = optimizer] {
                        fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0});
                      }),
                      "gradients are not finite"),
             "a refusal");
      expect(model->b.grad().item<double>() == 2.0, "gradients as before");
      auto const infinite = fabric.clip_gradients(model, optimizer,
                                                  weft::ClipNorm{.max_norm = 1.0, .error_if_nonfinite = false});
      return fabric.all_gather(at::cat({by_norm, by_value, infinite.reshape({1})}));
    });
    for (int rank = 0; rank < world; ++rank) {
      CHECK(relative_difference(seen[rank].narrow(0, 0, 5), at::tensor({5.f, 0.6f, 0.8f, 0.6f, 0.7f})) < 1e-5);
      CHECK(std::isinf(seen[rank][5].item<double>()));
    }
  }
}

TEST_CASE("schedulers work on the optimizer that the handle converts to", "[fabric]") {
  auto const rates = on_ranks<Single>(1, [](Run<Single>& fabric) {
    auto [model, optimizer] = fabric.setup(torch::nn::Linear(1, 1), weft::AdamW{.lr = 1.0});
    torch::optim::StepLR schedule(optimizer, /*step_size=*/1, /*gamma=*/0.5);
    std::vector<double> rates;
    for (int i = 0; i < 3; ++i) {
      fabric.backward(model(at::ones({1, 1})).sum());
      optimizer.step();
      rates.push_back(optimizer->param_groups()[0].options().get_lr());
      schedule.step();
    }
    return rates;
  });
  CHECK(rates ==
        std::vector<double>{1.0, 1.0, 0.5});  // LibTorch's StepLR counts from 0: its first step changes nothing
}

TEST_CASE(
    "LCH-02, LCH-07: launches follow one another with other sizes, ports of the system's choice, and leave the "
    "environment alone",
    "[fabric][known]") {
  for (int world : {3, 1, 2})
    CHECK(on_ranks(world, [](Run<>& fabric) { return fabric.all_reduce(1.0, ReduceOp::sum); }) == world);
  CHECK(std::getenv("MASTER_PORT") == nullptr);
  CHECK(std::getenv("WORLD_SIZE") == nullptr);
}

TEST_CASE("Environment: two processes that somebody else started train together", "[launch]") {
  using Joined = weft::Fabric<weft::DDP<>, weft::Environment, weft::On<weft::Cpu>>;
  weft::launch::ListeningSocket socket;
  auto const port = std::to_string(socket.port());
  socket.close();
  auto const result = weft::launch::Processes(2, std::chrono::seconds(5))
                          .run(
                              [&](int rank) {
                                weft::launch::inside_launched_function() =
                                    false;  // torchrun's children know nothing of weft
                                for (auto const& [name, value] :
                                     std::map<std::string, std::string>{{"RANK", std::to_string(rank)},
                                                                        {"WORLD_SIZE", "2"},
                                                                        {"LOCAL_RANK", std::to_string(rank)},
                                                                        {"LOCAL_WORLD_SIZE", "2"},
                                                                        {"MASTER_ADDR", "127.0.0.1"},
                                                                        {"MASTER_PORT", port}})
                                  ::setenv(name.c_str(), value.c_str(), 1);
                                Joined fabric;
                                fabric.launch();
                                auto model = fabric.setup(Scalar());
                                fabric.backward(model(fabric.global_rank() + 1.0));
                                expect(model->w.grad().item<double>() == 1.5, "the average");
                                fabric.teardown();
                                return std::string("done");
                              },
                              [] {});
  REQUIRE(result.failures.empty());
  CHECK(result.value == "done");
}

TEST_CASE("a rank that writes to somebody who is gone gets an error, not a signal", "[launch]") {
  on_ranks(2, [](Run<>&) {
    int ends[2];
    expect(::pipe(ends) == 0, "a pipe");
    ::close(ends[0]);
    expect(::write(ends[1], "x", 1) == -1 && errno == EPIPE, "a broken pipe as an error");
    ::close(ends[1]);
    return 0;
  });
}

TEST_CASE("launching without standard streams, and with too few descriptors, ends with an outcome", "[launch]") {
  /// What `act` makes of a process of its own, as its exit code.
  auto const in_process = [](auto const& act) {
    std::cout.flush();
    pid_t const process = ::fork();
    if (process == 0) {
      int code = 99;
      try {
        code = act();
      } catch (...) {
      }
      ::_exit(code);
    }
    int status = 0;
    ::waitpid(process, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  };
  CHECK(in_process([] {
          for (int const stream : {0, 1, 2}) ::close(stream);
          auto const outcome = Run<>::launch({.devices = 2}, [](Run<>& fabric) {
            for (int const stream : {0, 1, 2}) {
              struct stat about{};
              expect(::fstat(stream, &about) == 0 && S_ISCHR(about.st_mode), "nothing else has a stream's number");
            }
            fabric.print("into the void");
            fabric.barrier();
          });
          return outcome.exit_code();
        }) == 0);
  for (::rlim_t const descriptors : {4, 8, 10, 12, 16, 20, 24, 40})
    CHECK(in_process([descriptors] {
            ::rlimit const few{descriptors, descriptors};
            ::setrlimit(RLIMIT_NOFILE, &few);
            auto const outcome = Run<>::launch({.devices = 2}, [](Run<>& fabric) { fabric.barrier(); });
            return outcome ? 0 : contains(outcome.failures().front().message, "file descriptors") ? 1 : 2;
          }) == (descriptors == 40 ? 0 : 1));
}

TEST_CASE("what keeps ranks from starting is an outcome", "[launch]") {
  weft::launch::Machine const machine{[] { return 0; }, nullptr};
  auto const result = weft::launch::detail::run_ranks(
      "Fork", machine, {.devices = 2},
      [](auto&&...) -> weft::launch::Processes::Result { throw std::runtime_error("no thread\nand a stack"); });
  REQUIRE(result.failures.size() == 1);
  CHECK(
      result.failures[0].message ==
      "weft: Fork: ranks could not be started: no thread; may this user have more threads and processes (ulimit -u)?");
}

TEST_CASE("a time limit of nothing is refused", "[launch]") {
  auto const outcome = Run<>::launch({.devices = 2, .collective_timeout = std::chrono::milliseconds(0)}, [](Run<>&) {});
  REQUIRE(!outcome);
  CHECK_THAT(outcome.failures().front().message, ContainsSubstring("collective_timeout = 0 ms; write more than 0"));
}

TEST_CASE("devices: counts, lists, all, auto", "[launch]") {
  using weft::Devices;
  CHECK(Devices().count(0) == 1);
  CHECK(Devices("auto").count(8) == 8);
  CHECK(Devices(3).count(0) == 3);
  CHECK(Devices("3").count(0) == 3);
  CHECK(Devices(-1).count(4) == 4);
  CHECK(Devices("0,2").count(4) == 2);
  CHECK(Devices("0,2").index(1) == 2);
  CHECK(Devices({1}).count(2) == 1);
  CHECK(Devices({1}).index(0) == 1);
  for (auto const* wrong : {"", "x", "0", "-2", "1,", "1,1", "1,-1", "2 "})
    CHECK_THROWS_AS(Devices(wrong), weft::ConfigurationError);
  CHECK_THROWS_AS(Devices(0), weft::ConfigurationError);
  CHECK_THROWS_AS(Devices(std::vector<int>{}), weft::ConfigurationError);
  CHECK_THROWS_WITH(Devices(9).count(8), ContainsSubstring("devices = 9, but this node has 8"));
  CHECK_THROWS_WITH(Devices("7,8").count(8), ContainsSubstring("names device 8"));
}
