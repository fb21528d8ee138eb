#include "precisions.hpp"

using namespace test;
using weft::precision::Autocast;

namespace {

/// Whether a scope is left as it was entered.
struct Settings {
  bool enabled = at::autocast::is_autocast_enabled(at::kCPU), caches = at::autocast::is_autocast_cache_enabled();
  at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
  bool operator==(Settings const&) const = default;
};

/// torch::nn::Linear multiplies by a view of its weight, which LibTorch does not keep cast; at::linear takes the weight
/// itself.
struct TwiceImpl : torch::nn::Module {
  TwiceImpl() { weight = register_parameter("weight", at::randn({4, 4})); }
  at::Tensor forward(at::Tensor const& x) {
    if (throws) throw std::runtime_error("forward threw");
    enabled = at::autocast::is_autocast_enabled(at::kCPU);
    auto const y = at::linear(at::linear(x, weight), weight);
    seen = y.scalar_type();
    loss_of_input = at::mse_loss(x, x).scalar_type();
    return y;
  }
  at::Tensor weight;
  bool throws = false, enabled = false;
  at::ScalarType seen = at::kFloat, loss_of_input = at::kFloat;
};
TORCH_MODULE(Twice);

}  // namespace

TEST_CASE("Bf16Mixed is LibTorch's autocast around forward, on the fabric's device, and nothing else", "[precision]") {
  in<weft::Bf16Mixed>([](In<weft::Bf16Mixed>& fabric) {
    auto [model, optimizer] = fabric.setup(Twice(), weft::SGD{.lr = 0.1});
    auto const x = at::randn({8, 4});
    auto reference = Twice();
    {
      at::NoGradGuard const no_grad;
      reference->weight.copy_(model->weight);
    }
    Settings const before;
    for (int step = 0; step < 3; ++step) {
      auto const y = model(x);
      expect(model->enabled && model->seen == at::kBFloat16 && y.scalar_type() == at::kFloat,
             "products in bf16, the output in fp32");
      expect(model->loss_of_input == at::kFloat,
             "an input that nothing casts keeps its bits: a loss in forward sees its targets");
      fabric.backward(y.sum());
      at::Tensor theirs;
      {
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
        theirs = reference(x).to(at::kFloat);
        at::autocast::set_autocast_enabled(at::kCPU, false);
        at::autocast::clear_cache();
      }
      theirs.sum().backward();
      expect(y.equal(theirs), "the values of LibTorch's autocast");
      at::NoGradGuard const no_grad;
      expect(model->weight.grad().equal(reference->weight.grad()) && model->weight.grad().scalar_type() == at::kFloat,
             "its gradient, in fp32");
      reference->weight.sub_(reference->weight.grad(), 0.1);
      reference->weight.mutable_grad().reset();
      optimizer.step();
      optimizer.zero_grad();
      expect(Settings() == before, "settings are as before");
    }
  });
}

TEST_CASE("autocast settings are restored when forward throws", "[precision]") {
  in<weft::Bf16Mixed>([](In<weft::Bf16Mixed>& fabric) {
    auto model = fabric.setup(Twice());
    Settings const before;
    model->throws = true;
    expect(message_of([&] { model(at::ones({1, 4})); }) == "forward threw" && Settings() == before,
           "after an exception");
    model->throws = false;
    expect(model(at::ones({1, 4})).scalar_type() == at::kFloat && model->seen == at::kBFloat16,
           "and the model can be called again");
  });
}

TEST_CASE(
    "fabric.autocast() is forward's scope for other code, can be switched off inside, and is nothing where nothing is "
    "cast",
    "[precision]") {
  in<weft::Bf16Mixed>([](In<weft::Bf16Mixed>& fabric) {
    auto const a = at::randn({4, 4});
    auto const product = [&] { return at::matmul(a, a).scalar_type(); };
    Settings const before;
    {
      auto const scope = fabric.autocast();
      expect(product() == at::kBFloat16, "inside");
      {
        auto const whole = fabric.autocast(false);
        expect(product() == at::kFloat, "switched off");
      }
      expect(product() == at::kBFloat16, "and on again");
    }
    expect(product() == at::kFloat && Settings() == before, "outside");
  });
  in<weft::Fp32>([](In<weft::Fp32>& fabric) {
    auto const scope = fabric.autocast();
    expect(at::matmul(at::ones({2, 2}), at::ones({2, 2})).scalar_type() == at::kFloat, "Fp32");
  });
}

// Each of these goes wrong in LibTorch alone, where cast weights live as long as the outermost scope.
TEST_CASE("cast weights: not those of before a step", "[precision]") {
  in<weft::Bf16Mixed>([](In<weft::Bf16Mixed>& fabric) {
    auto [model, optimizer] = fabric.setup(Twice(), weft::SGD{.lr = 10});
    auto const scope = fabric.autocast();
    auto const x = at::ones({2, 4});
    auto const first = model(x);
    fabric.backward(first.sum());
    optimizer.step();
    expect(!model(x).equal(first), "a step inside of the scope shows in the next forward");
  });
}
TEST_CASE("cast weights: not those of a forward without gradients", "[precision]") {
  in<weft::Bf16Mixed>([](In<weft::Bf16Mixed>& fabric) {
    auto model = fabric.setup(Twice());
    auto const scope = fabric.autocast();
    {
      at::NoGradGuard const no_grad;
      model(at::ones({2, 4}));
    }
    fabric.backward(model(at::ones({2, 4})).sum());
    expect(model->weight.grad().defined(), "the weight gets a gradient after an evaluation in the same scope");
  });
}
TEST_CASE("cast weights: not those of another dtype, and none after the outermost scope", "[precision]") {
  auto const weight = at::ones({4, 4}).requires_grad_();
  auto const x = at::ones({2, 4});
  {
    Autocast const outer(at::kCPU, at::kBFloat16);
    CHECK(at::matmul(x, weight).scalar_type() == at::kBFloat16);
    {
      Autocast const inner(at::kCPU, at::kHalf);
      CHECK(at::matmul(x, weight).scalar_type() == at::kHalf);
    }
    CHECK(at::matmul(x, weight).scalar_type() == at::kBFloat16);
    Autocast const off(at::kCPU, at::kBFloat16, /*enabled=*/false);
    Autocast const innermost(at::kCPU, at::kHalf);
    CHECK(at::matmul(x, weight).scalar_type() == at::kHalf);
  }
  {
    at::NoGradGuard const no_grad;
    weight.fill_(2);
  }
  Autocast const later(at::kCPU, at::kBFloat16);
  CHECK(at::matmul(x, weight)[0][0].item<float>() == 8);
}
TEST_CASE("cast weights: made once in a forward", "[precision]") {
  in<weft::Bf16Mixed>([](In<weft::Bf16Mixed>& fabric) {
    auto model = fabric.setup(Twice());
    auto const y = model(at::ones({2, 4}));
    // The cast is a node of the graph: a weight that is used twice goes through one of them.
    auto const weight = torch::autograd::impl::grad_accumulator(model->weight);
    std::set<torch::autograd::Node*> casts;
    std::function<void(torch::autograd::Node*)> const walk = [&](torch::autograd::Node* node) {
      for (auto const& edge : node->next_edges()) {
        if (!edge.function) continue;
        if (edge.function == weight) casts.insert(node);
        walk(edge.function.get());
      }
    };
    walk(y.grad_fn().get());
    expect(casts.size() == 1 && contains((*casts.begin())->name(), "ToCopy"),
           "one cast: " + std::to_string(casts.size()));
  });
}
