#include "ranks.hpp"
#include "same.hpp"

#include <weft/data_parallel/data_parallel.hpp>
#include <weft/nn/linear.hpp>
#include <weft/nn/sync_batch_norm.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Counts = std::vector<int>;  // batches of each rank

at::Tensor batch_of(int rank, int step) {
  return at::sin(0.7 * at::arange(12, at::kFloat).view({4, 3}) + 1.3 * rank + 0.5 * step + 0.1);
}

/// A layer that only batches of even steps use, with `branches`; a BatchNorm with `norms`.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool norms = false, bool branches = false) {
    in = register_module("in", torch::nn::Linear(3, 5));
    out = register_module("out", torch::nn::Linear(5, 2));
    if (norms) norm = register_module("norm", torch::nn::BatchNorm1d(5));
    if (branches) branch = register_module("branch", torch::nn::Linear(5, 5));
    at::NoGradGuard const no_grad;
    double k = 0;
    for (auto& parameter : parameters())
      parameter.copy_(at::cos(0.3 * at::arange(parameter.numel(), at::kFloat) + k++).view_as(parameter));
  }
  at::Tensor forward(at::Tensor const& x, int step = 0) {
    auto h = in(x);
    if (norm) h = norm(h);
    if (branch && step % 2 == 0) h = h + branch(h);
    return out(at::tanh(h));
  }
  torch::nn::Linear in = nullptr, out = nullptr, branch = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
};
TORCH_MODULE(Net);

std::vector<at::Tensor> weights_of(torch::nn::Module const& module) {
  std::vector<at::Tensor> weights;
  for (auto const& parameter : module.parameters()) weights.push_back(parameter.detach().clone());
  return weights;
}

/// Rank 0's weights after epochs with these numbers of batches; all ranks must have the same.
template <class Strategy>
std::vector<at::Tensor> joined(std::vector<Counts> const& epochs, weft::JoinOptions options = {}, bool branches = false,
                               bool checking = false, double momentum = 0.9) {
  auto outcome = Run<Strategy>::launch(
      {.devices = static_cast<int>(epochs[0].size()),
       .collective_timeout = std::chrono::seconds(20),
       .check_collectives = checking},
      [=](Run<Strategy>& fabric) {
        auto [model, optimizer] = fabric.setup(Net(false, branches), weft::SGD{.lr = 0.2, .momentum = momentum});
        for (std::size_t epoch = 0; epoch < epochs.size(); ++epoch)
          fabric.join(model, optimizer, options, [&](auto& model, auto& optimizer) {
            for (int step = 0; step < epochs[epoch][static_cast<std::size_t>(fabric.global_rank())]; ++step) {
              fabric.backward(model(batch_of(fabric.global_rank(), step), step).square().mean());
              optimizer.step();
              optimizer.zero_grad();
            }
          });
        auto const weights = weights_of(model.module());
        for (auto const& weight : weights) {
          auto const all = fabric.all_gather(weight);
          for (int64_t rank = 0; rank < all.size(0); ++rank)
            expect(all[rank].equal(weight), "equal weights on all ranks");
        }
        return weights;
      });
  if (!outcome) FAIL(outcome.failures().front().message);
  return std::move(*outcome);
}

/// The same in one process, by definition: in each step the sum over the ranks that have a batch, divided.
std::vector<at::Tensor> by_definition(std::vector<Counts> const& epochs, bool by_initial_world_size = true,
                                      bool branches = false) {
  Net net(false, branches);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
  for (auto const& counts : epochs)
    for (int step = 0; step < *std::max_element(counts.begin(), counts.end()); ++step) {
      auto loss = at::zeros({});
      int present = 0;
      for (int rank = 0; rank < static_cast<int>(counts.size()); ++rank) {
        if (step >= counts[static_cast<std::size_t>(rank)]) continue;
        loss = loss + net(batch_of(rank, step), step).square().mean();
        ++present;
      }
      (loss / static_cast<double>(by_initial_world_size ? static_cast<int>(counts.size()) : present)).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  return weights_of(*net);
}

void check_close(std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b, double tolerance = 1e-5) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(relative_difference(a[i], b[i]) < tolerance);
}

/// The second epoch begins with momenta of the first; one rank has nothing in it.
std::vector<std::vector<Counts>> const patterns{
    {{2, 4}, {3, 0}}, {{0, 2, 1}, {1, 3, 3}}, {{1, 2, 4, 3}, {2, 2, 2, 2}}, {{3}}};

}  // namespace

TEST_CASE("DAT-03: a join gives the averages of its definition, and one model on all ranks; worlds 1 to 4",
          "[data_parallel][join][known]") {
  for (auto const& epochs : patterns) {
    INFO("world " << epochs[0].size());
    check_close(joined<weft::DDP<>>(epochs), by_definition(epochs));
    check_close(joined<weft::DDP<>>(epochs, {.divide_by_initial_world_size = false}), by_definition(epochs, false));
  }
}

TEST_CASE("DAT-03: a join ends with the weights of PyTorch's DDP join on the same uneven batches",
          "[data_parallel][join][known]") {
  // torch 2.15, DistributedDataParallel(net).join(divide_by_initial_world_size=...), SGD of rate 0.2: parameters one after another.
  auto const weights = [](Counts const& counts, bool by_initial_world_size) {
    std::vector<at::Tensor> flat;
    for (auto const& weight : joined<weft::DDP<>>({counts}, {.divide_by_initial_world_size = by_initial_world_size},
                                                  false, false, /*momentum=*/0))
      flat.push_back(weight.flatten());
    return at::cat(flat);
  };
  CHECK(relative_difference(
            weights({3, 1, 2}, true),
            torch::tensor({0.980162501f,  1.00354087f,   0.918910503f,  0.626283228f,  0.455447555f,   0.208461925f,
                           -0.219302773f, -0.429776609f, -0.630460441f, -0.913713038f, -0.939428329f,  -0.900491714f,
                           -0.856916666f, -0.609460354f, -0.351937085f, 0.373350978f,  -0.0466130488f, -0.268174142f,
                           -0.463626951f, -0.781583011f, -0.666638076f, -0.799610496f, -0.625081301f,  -0.693813801f,
                           -0.843279183f, -0.748256862f, -0.621835768f, -0.672971129f, -0.465889961f,  -0.24826178f,
                           -0.76515609f,  -0.598341465f})) < 2e-6);
  CHECK(relative_difference(
            weights({1, 2, 4, 3}, false),
            torch::tensor({0.980963349f,  1.00166702f,   0.915243387f,  0.64564395f,   0.49280867f,   0.246251822f,
                           -0.205283061f, -0.38535738f,  -0.576532781f, -0.911177337f, -0.940669358f, -0.904925883f,
                           -0.793262541f, -0.541372001f, -0.311437517f, 0.364871949f,  -0.148211136f, -0.387019485f,
                           -0.463746488f, -0.83874017f,  -0.798242569f, -0.910567105f, -0.538570344f, -0.566911221f,
                           -0.750540972f, -0.727928042f, -0.637440503f, -0.675895333f, -0.490298659f, -0.284202009f,
                           -0.579986989f, -0.460996181f})) < 2e-6);
}

TEST_CASE("DAT-03: every variant of DDP joins", "[data_parallel][join][known]") {
  auto const& epochs = patterns[1];
  auto const expected = by_definition(epochs);
  check_close(joined<weft::DDP<weft::Bucket<1>>>(epochs), expected);
  check_close(joined<weft::DDP<weft::GradientsInBuckets<false>>>(epochs), expected);
  check_close(joined<weft::DDP<weft::FindUnused>>(epochs), expected);
  check_close(
      joined<weft::DDP<weft::FindUnused, weft::Bucket<64>>>(epochs, {.divide_by_initial_world_size = false}, true),
      by_definition(epochs, false, true));
  check_close(joined<weft::DDP<weft::CommHook<weft::Bf16Compress>>>(epochs), expected, 3e-2);
  check_close(joined<weft::DDP<weft::CommHook<weft::PowerSGD<1, 100>>>>(epochs), expected);
  check_close(joined<weft::DDP<weft::StaticGraph>>({{1, 3}, {2, 0}}), by_definition({{1, 3}, {2, 0}}));
  check_close(joined<weft::DDP<>>(epochs, {}, false, /*checking=*/true), expected);
}

TEST_CASE("a join of ranks with equally many batches is DDP to the bit", "[data_parallel][join]") {
  auto const trained = [](bool joins) {
    return on_ranks(3, [joins](Run<>& fabric) {
      auto [model, optimizer] = fabric.setup(Net(true), weft::SGD{.lr = 0.2});
      auto const loop = [&fabric](auto& model, auto& optimizer) {
        for (int step = 0; step < 3; ++step) {
          fabric.backward(model(batch_of(fabric.global_rank(), step)).square().mean());
          optimizer.step();
          optimizer.zero_grad();
        }
      };
      if (joins)
        fabric.join(model, optimizer, loop);
      else
        loop(model, optimizer);
      auto result = weights_of(model.module());
      for (auto const& buffer : model->buffers()) result.push_back(buffer.clone());
      return result;
    });
  };
  check_same(trained(true), trained(false));
}

TEST_CASE("buffers in a join: the first rank that has a batch speaks, in the end one of those that had one last",
          "[data_parallel][join]") {
  auto const buffers = on_ranks(3, [](Run<>& fabric) {
    auto [model, optimizer] = fabric.setup(Net(true), weft::SGD{.lr = 0.1});
    auto const rank = fabric.global_rank();
    fabric.join(model, optimizer, [&](auto& model, auto& optimizer) {
      for (int step = 0; step < rank + 1; ++step) {
        fabric.backward(model(batch_of(rank, step)).square().mean());
        {
          at::NoGradGuard const no_grad;  // communicates nothing, in a join as elsewhere
          if (rank == 2) model(batch_of(rank, step));
        }
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    auto const all = fabric.all_gather(model->norm->num_batches_tracked);
    expect(fabric.all_gather(model->norm->running_mean).std(0, false).max().template item<double>() == 0,
           "one rank's statistics everywhere");
    return all;
  });
  // Ranks 0, 1, 2 come to step 0 with 0; rank 1 speaks in step 1, with 1; rank 2 alone had counted twice in step 0 and
  // 1, and its step 2 adds 2 to what it has then: 1 + 2.
  CHECK(buffers.equal(at::full({3}, 5, at::kLong)));
}

TEST_CASE("a join of two models, as a generator and a critic", "[data_parallel][join]") {
  auto const weights = on_ranks(2, [](Run<>& fabric) {
    auto [generator, generator_optimizer] = fabric.setup(torch::nn::Linear(3, 3), weft::AdamW{.lr = 0.1});
    auto [critic, critic_optimizer] = fabric.setup(Net(true), weft::SGD{.lr = 0.1});
    fabric.join(std::tie(generator, critic), std::tie(generator_optimizer, critic_optimizer),
                [&](auto& generator, auto& critic, auto& a, auto& b) {
                  for (int step = 0; step < 3 - fabric.global_rank(); ++step) {
                    auto const x = batch_of(fabric.global_rank(), step);
                    fabric.backward(critic(generator(x)).square().mean());
                    b.step();
                    b.zero_grad();
                    fabric.backward(generator(x).square().mean());
                    a.step();
                    a.zero_grad();
                  }
                });
    for (auto const& parameter : generator.parameters())
      expect(fabric.all_gather(parameter.detach()).std(0, false).max().item<double>() == 0, "one generator");
    for (auto const& parameter : critic.parameters())
      expect(fabric.all_gather(parameter.detach()).std(0, false).max().item<double>() == 0, "one critic");
    auto const& state = static_cast<torch::optim::AdamWParamState&>(
        *generator_optimizer->state().at(generator->weight.unsafeGetTensorImpl()));
    expect(state.step() == 3, "the optimizer of the rank that went on");
    return fabric.all_gather(state.exp_avg()).std(0, false).max().item<double>();
  });
  CHECK(weights == 0);
}

TEST_CASE("gradients that accumulate in a join are reduced by the pass that synchronizes", "[data_parallel][join]") {
  auto const gradient = on_ranks(2, [](Run<>& fabric) {
    auto [model, optimizer] = fabric.setup(Scalar(), weft::SGD{.lr = 1});
    fabric.join(model, optimizer, [&](auto& model, auto& optimizer) {
      for (int step = 0; step < 1 + fabric.global_rank(); ++step) {
        for (bool const last : {false, true}) {
          auto const guard = fabric.no_backward_sync(model, !last);
          fabric.backward(model(fabric.global_rank() == 0 ? 1.0 : 3.0));
        }
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    return model->w.item<double>();
  });
  CHECK(gradient == 1 - (2 + 6) / 2.0 - 6 / 2.0);
}

namespace {

struct ScaledFp32 {
  using category = weft::category::precision;
  static constexpr std::string_view name = "ScaledFp32";
  static constexpr weft::PrecisionConfig config{.loss_scaling = true,
                                                .scaling = {.initial_scale = 2, .growth_interval = 1}};
};

}  // namespace

TEST_CASE("after a join all ranks scale losses alike", "[data_parallel][join]") {
  using Fabric = weft::Fabric<weft::DDP<>, ScaledFp32, weft::On<weft::Cpu>>;
  auto outcome = Fabric::launch({.devices = 2}, [](Fabric& fabric) {
    auto [model, optimizer] = fabric.setup(Scalar(), weft::SGD{.lr = 1});
    fabric.join(model, optimizer, [&](auto& model, auto& optimizer) {
      for (int step = 0; step < 1 + 2 * fabric.global_rank(); ++step) {
        fabric.backward(model(1.0));
        optimizer.step();
        optimizer.zero_grad();
      }
    });
    return fabric.all_gather(fabric.loss_scaler().scale());
  });
  if (!outcome) FAIL(outcome.failures().front().message);
  CHECK(*outcome == std::vector<double>{16, 16});
}

TEST_CASE("throw_on_early_termination: all ranks throw when the first is through", "[data_parallel][join]") {
  auto const messages = on_ranks(3, [](Run<>& fabric) {
    auto [model, optimizer] = fabric.setup(Net(), weft::SGD{.lr = 0.1});
    int steps = 0;
    auto const message = message_of([&, model = model, optimizer = optimizer] {
      fabric.join(model, optimizer, {.throw_on_early_termination = true}, [&](auto& model, auto& optimizer) {
        for (; steps < 2 + fabric.global_rank(); ++steps) {
          fabric.backward(model(batch_of(fabric.global_rank(), steps)).square().mean());
          optimizer.step();
          optimizer.zero_grad();
        }
      });
    });
    expect(steps == 2, "two steps on each rank");
    expect(fabric.all_reduce(1, weft::ReduceOp::sum) == 3, "the ranks can go on together");
    fabric.backward(model(batch_of(0, 0)).square().mean());
    return message;
  });
  CHECK_THAT(messages, ContainsSubstring("weft: join: 1 of 3 ranks have no more batches, rank 1 has"));
}

TEST_CASE("nothing in a join waits for a rank that failed, or that takes other steps", "[data_parallel][join]") {
  auto const failure = [](auto body) {
    return failure_on_ranks(3, [body](Run<>& fabric) {
      auto [model, optimizer] = fabric.setup(Net(true), weft::SGD{.lr = 0.1});
      fabric.join(model, optimizer, [&](auto& model, auto&) { body(fabric, model); });
    });
  };
  CHECK_THAT(failure([](auto& fabric, auto model) {
               for (int step = 0; step < fabric.global_rank() + 1; ++step) {
                 if (step == 1 && fabric.global_rank() == 1) throw std::runtime_error("out of disk");
                 fabric.backward(model(batch_of(0, step)).sum());
               }
             }),
             ContainsSubstring("rank 1 of 3 failed: out of disk"));
  CHECK_THAT(failure([](auto& fabric, auto model) {
               auto const y = model(batch_of(0, 0)).sum();
               if (fabric.global_rank() == 1) model(batch_of(0, 0));
               fabric.backward(y);
             }),
             ContainsSubstring("ranks that have a batch must take the same steps"));
  CHECK_THAT(failure([](auto& fabric, auto model) {
               if (fabric.global_rank() == 0) return;
               fabric.all_reduce(model(batch_of(0, 0)).sum());
             }),
             ContainsSubstring("ranks that are through would be missing in it: call it after the join"));
  CHECK_THAT(failure([](auto& fabric, auto) {
               if (fabric.global_rank() == 0) return;
               fabric.rank_zero_first([] {});
             }),
             ContainsSubstring("rank_zero_first: inside of fabric.join ranks that are through would be missing"));
}

TEST_CASE("what a join cannot do is an error before the first step", "[data_parallel][join]") {
  using Hooked = weft::DDP<weft::CommHook<weft::Fp16Compress>>;
  CHECK_THAT(
      failure_on_ranks<Hooked>(2,
                               [](Run<Hooked>& fabric) {
                                 auto [model, optimizer] = fabric.setup(Net(), weft::SGD{.lr = 0.1});
                                 fabric.join(model, optimizer, {.divide_by_initial_world_size = false}, [] {});
                               }),
      ContainsSubstring("weft: join: CommHook, and a precision that reduces in other numbers, divide by all ranks"));
  using Static = weft::DDP<weft::StaticGraph>;
  CHECK_THAT(failure_on_ranks<Static>(2,
                                      [](Run<Static>& fabric) {
                                        auto [model, optimizer] = fabric.setup(Net(), weft::SGD{.lr = 0.1});
                                        fabric.join(model, optimizer, [&](auto& model, auto&) {
                                          if (fabric.global_rank() == 0) fabric.backward(model(batch_of(0, 0)).sum());
                                        });
                                      }),
             ContainsSubstring("StaticGraph learns the graph from the first pass"));
}

TEST_CASE("a join that one of two models refuses leaves the other as it was", "[data_parallel][join]") {
  on_ranks(2, [](Run<>& fabric) {
    auto [first, first_optimizer] = fabric.setup(Net(true), weft::SGD{.lr = 0.1});
    auto [second, second_optimizer] = fabric.setup(
        weft::convert_sync_batchnorm(fabric, torch::nn::Sequential(weft::nn::BatchNorm1d(3))), weft::SGD{.lr = 0.1});
    auto const message = message_of([&, first = first, second = second, a = first_optimizer, b = second_optimizer] {
      fabric.join(std::tie(first, second), std::tie(a, b), [] {});
    });
    expect(contains(message, "has its statistics from all ranks"), message);
    expect(fabric.all_reduce(1, weft::ReduceOp::sum) == 2, "the world is there again");
    fabric.backward(first(batch_of(fabric.global_rank(), 0)).square().mean());
    expect(fabric.all_gather(first->in->weight.grad()).std(0, false).max().item<double>() == 0,
           "and the first model trains");
    return true;
  });
}

TEST_CASE("a join of one process is its loop", "[data_parallel][join]") {
  auto const steps = [](auto& fabric) {
    auto [model, optimizer] = fabric.setup(weft::nn::Linear(3, 2), weft::SGD{.lr = 0.1});
    int count = 0;
    fabric.join(model, optimizer, [&] { ++count; });
    return count;
  };
  CHECK(on_ranks<weft::SingleDevice>(1, steps) == 1);
  CHECK(on_ranks<weft::DataParallel>(2, steps) == 1);
}
