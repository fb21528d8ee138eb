// What a gradient is, beyond its values, under each strategy: a sum that nobody has reduced, the rest of a pass that
// failed, no gradient at all on purpose. NEW-03, NEW-04, NEW-19.
#include "shard/pieces.hpp"

#include <torch/csrc/autograd/autograd.h>

namespace gradient_states {  // tests are compiled several in one file
namespace {

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::DDP, weft::FSDP, weft::FullShard, weft::ShardGradOp, weft::NoShard, weft::HybridShard, weft::WrapPolicy;

/// A block that can be told to fail in backward, when the gradients of what comes after it are there.
struct LayerImpl : torch::nn::Module {
  LayerImpl() { linear = register_module("linear", torch::nn::Linear(5, 5)); }
  at::Tensor forward(at::Tensor const& x, bool fails) {
    auto h = torch::tanh(linear(x));
    if (fails && h.requires_grad())
      h.register_hook([](at::Tensor const&) -> at::Tensor { throw std::runtime_error("out of memory"); });
    return h;
  }
  torch::nn::Linear linear = nullptr;
};
WEFT_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 3; ++i) layers.push_back(register_module("layer" + std::to_string(i), Layer()));
    out = register_module("out", torch::nn::Linear(5, 1));
  }
  at::Tensor forward(at::Tensor x, bool fails = false) {
    for (std::size_t i = 0; i < layers.size(); ++i) x = layers[i](x, fails && i == 1);
    return out(x);
  }
  std::vector<Layer> layers;
  torch::nn::Linear out = nullptr;
};
TORCH_MODULE(Net);

using Layers = WrapPolicy<Layer>;
using Grid = weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", 1>>;
template <class Function>
void for_each_of(Function const& f) {
  for_each_strategy<DDP<>, DDP<weft::FindUnused>, FSDP<FullShard, Layers, weft::Bucket<1>>, FSDP<ShardGradOp, Layers>,
                    FSDP<NoShard, Layers>, FSDP<HybridShard, Layers, Grid>>(f);
}

at::Tensor batch(int rank, int step) { return at::full({2, 5}, 0.1 * (1 + rank) + 0.3 * step); }

/// Whether the call throws a sentence of ours that contains the text. The same on all ranks.
template <class Call>
void refused(Call const& call, std::string const& text, std::string const& what) {
  try {
    call();
  } catch (std::exception const& error) {
    expect(contains(error.what(), text), what + ", not: " + error.what());
    return;
  }
  expect(false, what + ": nothing was refused");
}

/// Weights after three steps of one process over the batches of all ranks.
std::vector<at::Tensor> one_process(int world, Net net) {
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < world; ++rank) (net(batch(rank, step)).pow(2).mean() / world).backward();
    optimizer.step();
  }
  std::vector<at::Tensor> weights;
  for (auto const& parameter : net->parameters()) weights.push_back(parameter.detach().clone());
  return weights;
}

/// Runs three steps; `before` is called before each, with zeroed gradients. Weights are those of one process.
template <class Strategy, class Before>
void equals_one_process(int world, Before const& before) {
  INFO(weft::name_of<Strategy>() << ", world " << world);
  CHECK(on_ranks<Strategy>(world, [&](Run<Strategy>& fabric) {
          fabric.seed_everything(7);
          auto const want = one_process(world, Net());
          fabric.seed_everything(7);
          auto [model, optimizer] = fabric.setup(Net(), weft::SGD{.lr = 0.1});
          for (int step = 0; step < 3; ++step) {
            auto const loss = [&, &model = model](bool fails = false) {
              return model(batch(fabric.global_rank(), step), fails).pow(2).mean();
            };
            before(fabric, model, optimizer, loss, step);
            fabric.backward(loss());
            optimizer.step();
            optimizer.zero_grad();
          }
          auto const got = whole_weights(fabric, model);
          for (std::size_t i = 0; i < want.size(); ++i)
            expect(relative_difference(got[i], want[i]) < 1e-5, "weights of one process");
          return 1;
        }) == 1);
}

}  // namespace

TEST_CASE("NEW-19: a step on sums that no pass has reduced is refused, unless ranks step by their own",
          "[strategy][known]") {
  for_each_of([]<class Strategy>(std::type_identity<Strategy>) {
    equals_one_process<Strategy>(2, [](auto& fabric, auto& model, auto& optimizer, auto const& loss, int step) {
      auto const accumulate = [&] {
        auto const guard = fabric.no_backward_sync(model);
        fabric.backward(loss());
      };
      accumulate();
      refused([&] { optimizer.step(); }, "under no_backward_sync, which none without it has reduced", "step");
      refused([&] { fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0}); }, "has reduced", "clipping");
      optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
      if (step == 1) optimizer.step();  // by zeros
      accumulate();
      optimizer->zero_grad();  // LibTorch's own
    });
  });
}

TEST_CASE("NEW-19: sums that were reduced are stepped by", "[strategy][known]") {
  for_each_of([]<class Strategy>(std::type_identity<Strategy>) {
    INFO(weft::name_of<Strategy>());
    CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
            fabric.seed_everything(7);
            auto const want = one_process(2, Net());
            fabric.seed_everything(7);
            auto [model, optimizer] = fabric.setup(Net(), weft::SGD{.lr = 0.1});
            for (int step = 0; step < 3; ++step) {
              for (int part = 0; part < 2; ++part) {
                auto const guard = fabric.no_backward_sync(model, /*enabled=*/part == 0);
                fabric.backward(model(batch(fabric.global_rank(), step)).pow(2).mean() / 2);
              }
              optimizer.step();
              optimizer.zero_grad();
            }
            auto const got = whole_weights(fabric, model);
            for (std::size_t i = 0; i < want.size(); ++i)
              expect(relative_difference(got[i], want[i]) < 1e-5, "weights of one process");
            return 1;
          }) == 1);
  });
}

TEST_CASE("NEW-19: local_gradients lets ranks step by their own, where each has a whole one", "[strategy][known]") {
  for_each_of([]<class Strategy>(std::type_identity<Strategy>) {
    INFO(weft::name_of<Strategy>());
    CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
            fabric.seed_everything(7);
            Net alone;
            fabric.seed_everything(7);
            auto [model, optimizer] = fabric.setup(Net(), weft::SGD{.lr = 0.1});
            constexpr bool is_sharded = [] {
              if constexpr (requires { Strategy::config.sharding; })
                return Strategy::config.sharding.shard_parameters && !Strategy::config.sharding.replicate;
              return false;
            }();
            if constexpr (is_sharded) {
              refused([&, &model = model] { auto const guard = fabric.local_gradients(model); },
                      "parameters are sharded", "the guard");
              return 1;
            } else {
              torch::optim::SGD reference(alone->parameters(), 0.1);
              for (int step = 0; step < 2; ++step) {
                auto const x = batch(fabric.global_rank(), step);
                reference.zero_grad();
                alone->forward(x).pow(2).mean().backward();
                reference.step();
                auto const guard = fabric.local_gradients(model);
                fabric.backward(model(x).pow(2).mean());
                optimizer.step();
                optimizer.zero_grad();
              }
              auto const want = alone->parameters(), got = model.parameters();
              for (std::size_t i = 0; i < want.size(); ++i)
                expect(relative_difference(got[i], want[i]) < 1e-5, "weights of this rank's own training");
              return 1;
            }
          }) == 1);
  });
}

TEST_CASE("NEW-04: after an exception in backward the step is that of a fresh one", "[strategy][known]") {
  for_each_of([]<class Strategy>(std::type_identity<Strategy>) {
    for (int const world : {1, 2}) {
      if (world == 1 && std::is_same_v<Strategy, FSDP<HybridShard, Layers, Grid>>) continue;
      // In a pass that reduces; then in one that does not, before one that does.
      equals_one_process<Strategy>(world, [](auto& fabric, auto& model, auto& optimizer, auto const& loss, int step) {
        refused([&] { fabric.backward(loss(/*fails=*/true)); }, "out of memory", "backward");
        optimizer.zero_grad(/*set_to_none=*/step != 1);
        {
          auto const guard = fabric.no_backward_sync(model);
          fabric.backward(loss());
        }
        optimizer.zero_grad();
        {
          auto const guard = fabric.no_backward_sync(model);
          refused([&] { fabric.backward(loss(/*fails=*/true)); }, "out of memory", "guarded backward");
        }
        optimizer.zero_grad();
      });
    }
  });
}

TEST_CASE("NEW-04: going on without zero_grad after an exception is told, or changes nothing", "[strategy][known]") {
  for_each_of([]<class Strategy>(std::type_identity<Strategy>) {
    // FSDP shows what was there before the pass: nothing.
    constexpr bool puts_back = requires { Strategy::config.sharding; };
    equals_one_process<Strategy>(2, [](auto& fabric, auto&, auto& optimizer, auto const& loss, int) {
      refused([&] { fabric.backward(loss(/*fails=*/true)); }, "out of memory", "backward");
      if (puts_back) return;
      refused([&] { optimizer.step(); }, "call zero_grad() and begin the step again", "step");
      refused([&] { fabric.backward(loss()); }, "call zero_grad() first", "backward");
      optimizer.zero_grad();
    });
    // Sums of earlier passes are lost under each.
    equals_one_process<Strategy>(2, [](auto& fabric, auto& model, auto& optimizer, auto const& loss, int step) {
      {
        auto const guard = fabric.no_backward_sync(model);
        fabric.backward(loss());
      }
      refused([&] { fabric.backward(loss(/*fails=*/true)); }, "out of memory", "backward");
      refused([&] { optimizer.step(); }, "call zero_grad() and begin the step again", "step");
      refused([&] { fabric.backward(loss()); }, "call zero_grad() first", "backward");
      optimizer.zero_grad(/*set_to_none=*/step != 1);
    });
  });
}

TEST_CASE("NEW-03: a backward that reaches no parameter on purpose leaves the model as it was", "[strategy][known]") {
  for_each_of([]<class Strategy>(std::type_identity<Strategy>) {
    for (int const world : {1, 2, 3}) {
      if (world != 2 && std::is_same_v<Strategy, FSDP<HybridShard, Layers, Grid>>) continue;
      equals_one_process<Strategy>(world, [](auto& fabric, auto& model, auto&, auto const&, int step) {
        auto const x = batch(fabric.global_rank(), step).requires_grad_();
        auto const y = model(x).sum();
        auto const saliency = torch::autograd::grad({y}, {x}).front();
        expect(saliency.abs().sum().template item<double>() > 0, "the gradient of the input");
        for (auto const& parameter : model.parameters())
          expect(!parameter.grad().defined(), "no gradient of a parameter");
      });
    }
  });
}

}  // namespace gradient_states
