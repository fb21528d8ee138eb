#include "ranks.hpp"

#include <weft/nn/convolution.hpp>
#include <weft/nn/linear.hpp>

using namespace test;

namespace {

/// Two weights; each call says which are used, and how much.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    a = register_parameter("a", torch::ones({3}));
    b = register_parameter("b", torch::ones({3}));
  }
  at::Tensor forward(double of_a, double of_b) {
    auto result = torch::zeros({});
    if (of_a != 0) result = result + (a * of_a).sum();
    if (of_b != 0) result = result + (b * of_b).sum();
    return result;
  }
  /// Both are in the output, but only the first half of it may be in the loss.
  std::vector<at::Tensor> both(double of_a, double of_b) { return {(a * of_a).sum(), (b * of_b).sum()}; }
  at::Tensor a, b;
};
TORCH_MODULE(Branches);

at::Tensor defined_or_nan(at::Tensor const& gradient) { return gradient.defined() ? gradient : at::full({3}, NAN); }
bool is_nan(at::Tensor const& tensor) { return tensor.isnan().all().item<bool>(); }

using FindUnused = weft::DDP<weft::FindUnused>;

}  // namespace

TEST_CASE("NUM-21: a parameter unused on all ranks keeps no gradient and does not move", "[data_parallel][known]") {
  auto const result = on_ranks<FindUnused>(2, [](Run<FindUnused>& fabric) {
    auto [model, optimizer] = fabric.setup(Branches(), weft::SGD{.lr = 1.0, .momentum = 0.9, .weight_decay = 0.1});
    for (int step = 0; step < 3; ++step) {
      fabric.backward(model(1.0 + fabric.global_rank(), 0.0));
      expect(!model->b.grad().defined(), "an undefined gradient");
      optimizer.step();
      optimizer.zero_grad();
    }
    return at::stack({model->a.detach(), model->b.detach()});
  });
  CHECK(result[1].equal(at::ones({3})));
  CHECK(result[0][0].item<double>() != 1.0);
}

TEST_CASE("NUM-21: a parameter used on one rank gets the average on all", "[data_parallel][known]") {
  auto const gradients = on_ranks<FindUnused>(2, [](Run<FindUnused>& fabric) {
    auto model = fabric.setup(Branches());
    fabric.backward(model(1.0, fabric.global_rank() == 0 ? 4.0 : 0.0));
    return fabric.all_gather(defined_or_nan(model->b.grad()));
  });
  CHECK(gradients.equal(at::full({2, 3}, 2.0)));
}

TEST_CASE("NUM-22: each rank takes another branch", "[data_parallel][known]") {
  auto const gradients = on_ranks<FindUnused>(2, [](Run<FindUnused>& fabric) {
    auto model = fabric.setup(Branches());
    for (int step = 0; step < 3; ++step) {
      model->a.mutable_grad() = model->b.mutable_grad() = at::Tensor();
      fabric.backward(fabric.global_rank() == 0 ? model(6.0, 0.0) : model(0.0, 8.0));
    }
    return fabric.all_gather(at::stack({defined_or_nan(model->a.grad()), defined_or_nan(model->b.grad())}));
  });
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(gradients[rank][0].equal(at::full({3}, 3.0)));
    CHECK(gradients[rank][1].equal(at::full({3}, 4.0)));
  }
}

TEST_CASE("find-unused sees what the loss leaves out, and several calls of the model", "[data_parallel]") {
  auto const gradients = on_ranks<FindUnused>(2, [](Run<FindUnused>& fabric) {
    auto model = fabric.setup(Branches());
    double const weight = fabric.global_rank() + 1;
    auto const outputs = model.template call<&BranchesImpl::both>(2 * weight, 5.0);  // the second is in no loss
    fabric.backward(outputs[0]);
    auto const first = at::stack({defined_or_nan(model->a.grad()), defined_or_nan(model->b.grad())});
    model->a.mutable_grad() = at::Tensor();
    fabric.backward(model(2 * weight, 0.0) + model(0.0, 4 * weight));
    return at::cat({first, at::stack({model->a.grad(), model->b.grad()})});
  });
  CHECK(gradients[0].equal(at::full({3}, 3.0)));
  CHECK(is_nan(gradients[1]));
  CHECK(gradients[2].equal(at::full({3}, 3.0)));
  CHECK(gradients[3].equal(at::full({3}, 6.0)));
}

TEST_CASE("unused parameters without FindUnused are named by the backward in which they stayed unused",
          "[data_parallel]") {
  auto const message = failure_on_ranks(2, [](Run<>& fabric) {
    auto model = fabric.setup(Branches());
    fabric.backward(model(1.0, 0.0));
  });
  CHECK_THAT(message, Catch::Matchers::ContainsSubstring("1 of 2 parameters got no gradient in this backward: b.") &&
                          Catch::Matchers::ContainsSubstring("write DDP<FindUnused>", Catch::CaseSensitive::No));
}

TEST_CASE("NUM-22: ranks that leave out different parameters without FindUnused get an error, not a hang",
          "[data_parallel][known]") {
  auto const both = failure_on_ranks(2, [](Run<>& fabric) {
    auto model = fabric.setup(Branches());
    fabric.backward(fabric.global_rank() == 0 ? model(6.0, 0.0) : model(0.0, 8.0));
  });
  CHECK_THAT(both, Catch::Matchers::ContainsSubstring("1 of 2 parameters got no gradient in this backward: "));
  auto const one = failure_on_ranks(2, [](Run<>& fabric) {
    auto model = fabric.setup(Branches());
    fabric.backward(model(6.0, fabric.global_rank() == 0 ? 0.0 : 8.0));  // rank 1 waits for rank 0
  });
  CHECK_THAT(one,
             Catch::Matchers::ContainsSubstring("DDP, rank 0: 1 of 2 parameters got no gradient in this backward: b."));
}

TEST_CASE("a static graph learns which parameters stay unused and how often others are used", "[data_parallel]") {
  using Static = weft::DDP<weft::StaticGraph>;
  auto const gradients = on_ranks<Static>(2, [](Run<Static>& fabric) {
    auto model = fabric.setup(Branches());
    for (int step = 0; step < 4; ++step) {
      model->a.mutable_grad() = at::Tensor();
      fabric.backward(model(2.0 * (fabric.global_rank() + 1), 0.0));
    }
    return at::stack({model->a.grad(), defined_or_nan(model->b.grad())});
  });
  CHECK(gradients[0].equal(at::full({3}, 3.0)));
  CHECK(is_nan(gradients[1]));
}

TEST_CASE("NUM-23: frozen parameters stay as they are, with no gradient and no state", "[data_parallel][known]") {
  auto const result = on_ranks(2, [](Run<>& fabric) {
    Branches module;
    module->a.requires_grad_(false);
    auto [model, optimizer] = fabric.setup(module, weft::AdamW{.lr = 0.1, .weight_decay = 0.1});
    for (int step = 0; step < 3; ++step) {
      fabric.backward(model(2.0, 1.0 + fabric.global_rank()));
      optimizer.step();
      expect(!model->a.grad().defined(), "no gradient");
      optimizer.zero_grad();
    }
    expect(optimizer->state().size() == 1, "state for the trainable parameter only");
    return at::stack({model->a.detach(), model->b.detach()});
  });
  CHECK(result[0].equal(at::ones({3})));
  auto const one_process = on_ranks<weft::SingleDevice>(1, [](Run<weft::SingleDevice>& fabric) {
    Branches module;
    module->a.requires_grad_(false);
    auto [model, optimizer] = fabric.setup(module, weft::AdamW{.lr = 0.1, .weight_decay = 0.1});
    for (int step = 0; step < 3; ++step) {
      fabric.backward(model(2.0, 1.5));  // what two ranks average to
      optimizer.step();
      optimizer.zero_grad();
    }
    return model->b.detach();
  });
  CHECK(relative_difference(result[1], one_process) < 1e-6);
}

TEST_CASE("NUM-23: a parameter frozen after setup stays as it is where unused ones are looked for",
          "[data_parallel][known]") {
  auto const result = on_ranks<FindUnused>(2, [](Run<FindUnused>& fabric) {
    auto [model, optimizer] = fabric.setup(Branches(), weft::SGD{.lr = 0.1, .weight_decay = 0.1});
    model->a.requires_grad_(false);
    for (int step = 0; step < 3; ++step) {
      fabric.backward(model(2.0, 1.0 + fabric.global_rank()));
      optimizer.step();
      optimizer.zero_grad();
    }
    return at::stack({model->a.detach(), model->b.detach()});
  });
  CHECK(result[0].equal(at::ones({3})));
  CHECK(result[1][0].item<double>() < 1.0);
  // Without FindUnused it counts as unused, and is named.
  CHECK_THAT(failure_on_ranks(2,
                              [](Run<>& fabric) {
                                auto model = fabric.setup(Branches());
                                model->a.requires_grad_(false);
                                fabric.backward(model(2.0, 1.0));
                              }),
             Catch::Matchers::ContainsSubstring("got no gradient in this backward: a."));
}

TEST_CASE("NUM-24: an optimizer made after a trial forward moves every parameter", "[data_parallel][known]") {
  auto const moved = on_ranks(2, [](Run<>& fabric) {
    auto model = fabric.setup_module(Branches());
    {
      at::NoGradGuard const no_grad;
      model(1.0, 1.0);
    }
    auto optimizer = fabric.setup_optimizers(model, weft::SGD{.lr = 1.0});
    fabric.backward(model(1.0, 2.0 * (fabric.global_rank() + 1)));
    optimizer.step();
    return at::stack({model->a.detach(), model->b.detach()});
  });
  CHECK(moved[0].equal(at::zeros({3})));
  CHECK(moved[1].equal(at::full({3}, -2.0)));
}

TEST_CASE("NUM-25: an optimizer on a subset keeps its groups, their rates and their order", "[data_parallel][known]") {
  auto const [weights, rates] = on_ranks(2, [](Run<>& fabric) {
    struct ThreeImpl : torch::nn::Module {
      ThreeImpl() {
        backbone = register_parameter("backbone", torch::ones({2}));
        head = register_parameter("head", torch::ones({2}));
        norm = register_parameter("norm", torch::ones({2}));
      }
      at::Tensor forward() { return (backbone + head + norm).sum(); }
      at::Tensor backbone, head, norm;
    };
    auto module = std::make_shared<ThreeImpl>();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{module->head}, std::make_unique<torch::optim::SGDOptions>(0.1));
    groups.emplace_back(std::vector<at::Tensor>{module->norm}, std::make_unique<torch::optim::SGDOptions>(0.01));
    torch::optim::SGD sgd(groups, torch::optim::SGDOptions(1.0));
    auto [model, optimizer] = fabric.setup(module, sgd);
    fabric.backward(model());
    optimizer.step();
    std::vector<double> rates;
    for (auto const& group : optimizer->param_groups())
      rates.push_back(static_cast<torch::optim::SGDOptions const&>(group.options()).lr());
    return std::pair(at::stack({model->backbone.detach(), model->head.detach(), model->norm.detach()}), rates);
  });
  CHECK(weights[0].equal(at::ones({2})));
  CHECK(relative_difference(weights[1], at::full({2}, 0.9)) < 1e-6);
  CHECK(relative_difference(weights[2], at::full({2}, 0.99)) < 1e-6);
  CHECK(rates == std::vector<double>{0.1, 0.01});
}

TEST_CASE("NUM-28: a 0-dim parameter trains and stays 0-dim", "[data_parallel][known]") {
  auto const shape = on_ranks(3, [](Run<>& fabric) {
    auto [model, optimizer] = fabric.setup(Scalar(), weft::AdamW{.lr = 0.1});
    fabric.backward(model(1.0));
    optimizer.step();
    expect(model->w.item<double>() < 1, "a step");
    auto const path = std::filesystem::temp_directory_path() /
                      ("weft-scalar-" + std::to_string(::getppid()) + ".safetensors");
    fabric.save_weights(path, model);
    fabric.load_weights(path, model);
    fabric.barrier();
    if (fabric.is_global_zero()) std::filesystem::remove(path);
    return model->w.sizes().vec();
  });
  CHECK(shape.empty());
}

TEST_CASE("NUM-32: channels-last and transposed parameters keep their strides and train alike",
          "[data_parallel][known]") {
  struct StridedImpl : torch::nn::Module {
    StridedImpl() {
      conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 6, 1)));
      conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
      linear = register_module("linear", torch::nn::Linear(6, 5));
      linear->weight.set_data(linear->weight.detach().t().contiguous().t());
    }
    at::Tensor forward(at::Tensor const& x) {
      return linear(conv(x.contiguous(at::MemoryFormat::ChannelsLast)).mean({2, 3}));
    }
    torch::nn::Conv2d conv = nullptr;
    torch::nn::Linear linear = nullptr;
  };
  auto const train = []<class Strategy>(int world, std::type_identity<Strategy>) {
    return on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
      fabric.seed_everything(3);
      auto [model, optimizer] = fabric.setup(std::make_shared<StridedImpl>(), weft::SGD{.lr = 0.1, .momentum = 0.9});
      auto const strides = std::pair(model->conv->weight.strides().vec(), model->linear->weight.strides().vec());
      for (int step = 0; step < 5; ++step) {
        auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
        auto const x = at::randn({4, 4, 3, 3}, generator)
                           .chunk(fabric.world_size())[static_cast<std::size_t>(fabric.global_rank())];
        fabric.backward(model(x).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      auto const path = std::filesystem::temp_directory_path() /
                        ("weft-strided-" + std::to_string(::getppid()) + ".safetensors");
      auto const trained = model->conv->weight.detach().clone();
      fabric.save_weights(path, model);
      fabric.load_weights(path, model);
      fabric.barrier();
      if (fabric.is_global_zero()) std::filesystem::remove(path);
      expect(model->conv->weight.equal(trained), "the saved values");
      expect(strides == std::pair(model->conv->weight.strides().vec(), model->linear->weight.strides().vec()),
             "strides as before, also after a load");
      return std::vector<at::Tensor>{model->conv->weight.detach(), model->linear->weight.detach()};
    });
  };
  auto const one = train(1, std::type_identity<weft::SingleDevice>()),
             two = train(2, std::type_identity<weft::DDP<>>());
  for (std::size_t i = 0; i < 2; ++i) CHECK(relative_difference(two[i], one[i]) < 1e-5);
}

TEST_CASE("gradients are views of buckets unless the type says otherwise", "[data_parallel]") {
  auto const shared = []<class Strategy>(std::type_identity<Strategy>) {
    return on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
      auto [model, optimizer] = fabric.setup(Branches(), weft::SGD{.lr = 0.1});
      fabric.backward(model(1.0, 2.0));
      bool const one_storage = model->a.grad().is_alias_of(model->b.grad());
      optimizer.zero_grad(/*set_to_none=*/false);  // torch's own throws on views
      expect(model->a.grad().eq(0).all().template item<bool>(), "zeros");
      optimizer.zero_grad();
      expect(!model->a.grad().defined(), "none");
      return one_storage;
    });
  };
  CHECK(shared(std::type_identity<weft::DDP<>>()));
  CHECK_FALSE(shared(std::type_identity<weft::DDP<weft::GradientsInBuckets<false>>>()));
}
