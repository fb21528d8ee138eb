#include "differing_models.hpp"

#include <weft/nn/activation.hpp>
#include <weft/nn/layers.hpp>
#include <weft/nn/linear.hpp>
#include <weft/nn/normalization.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;

namespace {

struct WithBufferImpl : torch::nn::Module {
  explicit WithBufferImpl(double start = 0) {
    w = register_parameter("w", torch::full({2}, start));
    count = register_buffer("count", torch::full({2}, start));
  }
  at::Tensor forward(at::Tensor const& x) {
    auto const result = (w * x * count).sum();
    count.add_(1);
    return result;
  }
  at::Tensor w, count;
};
TORCH_MODULE(WithBuffer);

}  // namespace

TEST_CASE("NUM-26: all ranks start from rank 0's parameters and buffers, whatever each drew",
          "[data_parallel][known]") {
  for (int world : {1, 2, 3, 4}) {
    auto const start = on_ranks(world, [](Run<>& fabric) {
      torch::manual_seed(static_cast<uint64_t>(fabric.global_rank()));
      torch::nn::Sequential module(torch::nn::Linear(3, 5), torch::nn::BatchNorm1d(5), torch::nn::Linear(5, 2));
      module[1]->as<torch::nn::BatchNorm1d>()->running_mean.fill_(fabric.global_rank() + 1);
      auto const before = at::cat({module->parameters()[0].flatten(), module->buffers()[0].flatten()}).detach().clone();
      auto model = fabric.setup(module);
      std::vector<at::Tensor> all;
      for (auto const& parameter : model->parameters()) all.push_back(parameter.detach().flatten());
      for (auto const& buffer : model->buffers()) all.push_back(buffer.to(at::kFloat).flatten());
      auto const now = at::cat({all[0], model->buffers()[0].flatten()});
      return std::pair(before, std::pair(now, fabric.all_gather(at::cat(all))));
    });
    CHECK(start.first.equal(start.second.first));  // rank 0 kept its own
    for (int rank = 0; rank < world; ++rank) CHECK(start.second.second[rank].equal(start.second.second[0]));
  }
}

TEST_CASE("ranks whose models differ: every rank names the first difference", "[data_parallel]") {
  check_differing_models<weft::DDP<>>();
}

TEST_CASE("a model with nothing to train is refused", "[data_parallel]") {
  CHECK_THAT(failure_on_ranks(2, [](Run<>& fabric) { fabric.setup(torch::nn::Sequential(torch::nn::ReLU())); }),
             ContainsSubstring("the model has no parameters"));
  CHECK_THAT(failure_on_ranks(2,
                              [](Run<>& fabric) {
                                torch::nn::Linear frozen(2, 2);
                                for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
                                fabric.setup(frozen);
                              }),
             ContainsSubstring("no parameter that requires a gradient"));
}

TEST_CASE("buffers of rank 0 are everyone's at the start of forward, unless switched off", "[data_parallel]") {
  auto const counts = []<class Strategy>(std::type_identity<Strategy>) {
    return on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
      auto model = fabric.setup(WithBuffer(1.0));
      auto const x = at::ones({2});
      model(x);
      model->count.add_(10 * fabric.global_rank());
      std::vector<at::Tensor> seen{fabric.all_gather(model->count)};
      {
        auto const guard = fabric.no_backward_sync(model);
        model(x);
      }
      seen.push_back(fabric.all_gather(model->count));
      model(x);
      seen.push_back(fabric.all_gather(model->count));
      return at::stack(seen).select(2, 0);
    });
  };
  CHECK(counts(std::type_identity<weft::DDP<>>()).equal(torch::tensor({{2.f, 12.f}, {3.f, 13.f}, {4.f, 4.f}})));
  CHECK(counts(std::type_identity<weft::DDP<weft::BroadcastBuffers<false>>>())
            .equal(torch::tensor({{2.f, 12.f}, {3.f, 13.f}, {4.f, 14.f}})));
}

TEST_CASE("NUM-30: two forwards of a BatchNorm model before one backward", "[data_parallel][known]") {
  auto const run = []<class Strategy>(int world, std::type_identity<Strategy>) {
    return on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
      fabric.seed_everything(5);
      auto model = fabric.setup(
          torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 1)));
      auto generator = at::detail::createCPUGenerator(9);
      auto const x = at::randn({6, 3}, generator), y = at::randn({6, 3}, generator);
      fabric.backward(
          (model(x) + model(y)).sum());  // the same data on all ranks: the average is one process's gradient
      std::vector<at::Tensor> gradients;
      for (auto const& parameter : model.parameters()) gradients.push_back(parameter.grad().clone());
      return gradients;
    });
  };
  auto const one = run(1, std::type_identity<weft::SingleDevice>()), two = run(2, std::type_identity<weft::DDP<>>());
  for (std::size_t i = 0; i < one.size(); ++i) CHECK((two[i] - one[i]).abs().max().item<double>() < 1e-5);
}

TEST_CASE("NUM-31: buffers are looked up in the registry each time: one that is registered anew is synchronized",
          "[data_parallel][known]") {
  struct HolderImpl : torch::nn::Module {
    HolderImpl() {
      w = register_parameter("w", torch::ones({2}));
      owner = register_module("owner", make());
    }
    static torch::nn::BatchNorm1d make() {  // without parameters, which setup has to see
      return torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(2).affine(false));
    }
    at::Tensor forward(at::Tensor const& x) { return (w * x).sum(); }
    void replace(double value) {
      auto other = make();
      other->running_mean.fill_(value);
      owner = replace_module("owner", other);
    }
    at::Tensor w;
    torch::nn::BatchNorm1d owner = nullptr;
  };
  using Unused = weft::DDP<weft::FindUnused>;
  auto const means = on_ranks<Unused>(2, [](Run<Unused>& fabric) {
    auto model = fabric.setup(std::make_shared<HolderImpl>());
    fabric.backward(model(at::ones({2})));
    model->replace(fabric.global_rank() + 5.0);
    auto const before = fabric.all_gather(model->owner->running_mean);
    model(at::ones({2}));
    return at::stack({before, fabric.all_gather(model->owner->running_mean)});
  });
  CHECK(means[0].equal(torch::tensor({{5.f, 5.f}, {6.f, 6.f}})));
  CHECK(means[1].equal(at::full({2, 2}, 5.0)));
}

TEST_CASE(
    "one rank may evaluate alone, or longer than another, also after the first step: no collective without gradients",
    "[data_parallel]") {
  auto const sums = on_ranks(2, [](Run<>& fabric) {
    auto [model, optimizer] = fabric.setup(
        torch::nn::Sequential(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 1)),
        weft::SGD{.lr = 0.1});
    std::vector<double> sums;
    for (int step = 0; step < 3; ++step) {
      fabric.backward(model(at::rand({4, 2})).sum());
      optimizer.step();
      optimizer.zero_grad();
      {
        at::NoGradGuard const no_grad;
        for (int batch = 0; batch < 1 + fabric.global_rank(); ++batch) model(at::rand({4, 2}));
        if (fabric.is_global_zero()) model(at::rand({4, 2}));
      }
      sums.push_back(fabric.all_reduce(1.0, weft::ReduceOp::sum));
    }
    return sums;
  });
  CHECK(sums == std::vector<double>{2, 2, 2});
}

TEST_CASE("a parameter unfrozen after setup is refused, since it would not be averaged", "[data_parallel]") {
  CHECK_THAT(failure_on_ranks(2,
                              [](Run<>& fabric) {
                                torch::nn::Sequential module(torch::nn::Linear(2, 3), torch::nn::Linear(3, 1));
                                for (auto& parameter : module[0]->parameters()) parameter.requires_grad_(false);
                                auto model = fabric.setup(module);
                                fabric.backward(model(at::ones({1, 2})).sum());
                                for (auto& parameter : model->parameters()) parameter.requires_grad_(true);
                                fabric.backward(model(at::ones({1, 2})).sum());
                              }),
             ContainsSubstring("parameter 0.weight was frozen at setup and requires a gradient now"));
}

TEST_CASE(
    "NUM-33: a loss that goes past the wrapped model is an error that says what to write; call<&M::method> is right",
    "[data_parallel][known]") {
  struct EncoderImpl : torch::nn::Module {
    EncoderImpl() { layer = register_module("layer", torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false))); }
    at::Tensor forward(at::Tensor const& x) { return encode(x).sum(); }
    at::Tensor encode(at::Tensor const& x) { return layer(x); }
    torch::nn::Linear layer = nullptr;
  };
  auto const x_of = [](int rank) { return at::full({1, 2}, rank + 1.0); };
  CHECK_THAT(failure_on_ranks(2,
                              [&](Run<>& fabric) {
                                auto model = fabric.setup(std::make_shared<EncoderImpl>());
                                fabric.backward(model->encode(x_of(fabric.global_rank())).sum());
                              }),
             ContainsSubstring(
                 "a gradient of parameter layer.weight arrived, but the loss does not come from the wrapped model") &&
                 ContainsSubstring("model.call<&M::method>(...)"));
  auto const gradients = on_ranks(2, [&](Run<>& fabric) {
    auto model = fabric.setup(std::make_shared<EncoderImpl>());
    fabric.backward(model.call<&EncoderImpl::encode>(x_of(fabric.global_rank())).sum());
    return fabric.all_gather(model->layer->weight.grad());
  });
  CHECK(gradients.equal(at::full({2, 2, 2}, 1.5)));
}

TEST_CASE("a unit called past its wrapped model is refused where it is entered", "[data_parallel]") {
  CHECK_THAT(failure_on_ranks(2,
                              [](Run<>& fabric) {
                                auto model = fabric.setup(torch::nn::Sequential(weft::nn::Linear(2, 2)));
                                model->forward(at::ones({1, 2}));
                              }),
             ContainsSubstring("model(...)"));
}

TEST_CASE("an exception in forward or backward on all ranks leaves a model that trains on as if nothing had been",
          "[data_parallel]") {
  auto const run = [](bool disturb) {
    return on_ranks(2, [=](Run<>& fabric) {
      fabric.seed_everything(2);
      auto [model, optimizer] = fabric.setup(
          torch::nn::Sequential(torch::nn::Linear(3, 3), torch::nn::Tanh(), torch::nn::Linear(3, 1)),
          weft::SGD{.lr = 0.1});
      for (int step = 0; step < 6; ++step) {
        auto const x = at::full({2, 3}, 0.1 * (step + 1) * (fabric.global_rank() + 1));
        if (disturb && step % 2 == 1) {
          message_of([&, &model = model] { model(at::ones({2, 7})); });
          auto hidden = model(x);
          hidden.register_hook([](at::Tensor const&) -> at::Tensor { throw std::runtime_error("stumbled"); });
          expect(contains(message_of([&] { fabric.backward(hidden.sum()); }), "stumbled"), "the exception");
          model.module().parameters()[0].register_hook(
              [counter = std::make_shared<int>(0)](at::Tensor const& gradient) -> at::Tensor {
                if ((*counter)++ == 0) throw std::runtime_error("late");
                return gradient;
              });
          expect(contains(message_of([&, &model = model] { fabric.backward(model(x).sum()); }), "late"),
                 "the exception");
          optimizer.zero_grad();
        }
        fabric.backward(model(x).sum());
        optimizer.step();
        optimizer.zero_grad();
      }
      std::vector<at::Tensor> weights;
      for (auto const& parameter : model.parameters()) weights.push_back(parameter.detach().flatten());
      return fabric.all_gather(at::cat(weights));
    });
  };
  auto const calm = run(false), disturbed = run(true);
  CHECK(disturbed[0].equal(disturbed[1]));
  CHECK(relative_difference(disturbed, calm) < 1e-6);
}
