#include "precisions.hpp"

#include <weft/nn/activation.hpp>
#include <weft/nn/linear.hpp>
#include <weft/nn/normalization.hpp>

using namespace test;

namespace {

template <class Precision, class... Options>
using Ddp = In<Precision, weft::DDP<Options...>>;

/// Two parameters, one of which a forward may leave out.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    a = register_parameter("a", torch::ones({3}));
    b = register_parameter("b", torch::ones({3}));
  }
  at::Tensor forward(at::Tensor const& x, bool both) {
    return (a * x).sum() + (both ? (b * x).sum() * 2 : at::zeros({}, x.options()));
  }
  at::Tensor a, b;
};
TORCH_MODULE(Branches);

struct Bf16Reduced {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Bf16Reduced";
  static constexpr weft::PrecisionConfig config{
      .stored = weft::Number::bf16, .computed = weft::Number::bf16, .reduced = weft::Number::bf16};
};

template <class Run>
std::size_t bytes_of_backward(Run& fabric, at::Tensor const& loss) {
  fabric.recorder().start();
  fabric.backward(loss);
  std::size_t bytes = 0;
  for (auto const& event : fabric.recorder().stop()) bytes += event.bytes;
  return bytes;
}

/// A weight in fp64, which a precision of one's own leaves there.
struct DoubleImpl : torch::nn::Module {
  DoubleImpl() { w = register_parameter("w", torch::ones({2}, at::kDouble)); }
  at::Tensor forward(double gradient) { return (w * gradient).sum(); }
  at::Tensor w;
};
TORCH_MODULE(Double);

struct Bf16ButDoubles {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Bf16ButDoubles";
  static constexpr weft::PrecisionConfig config = weft::Bf16::config;
};

}  // namespace

template <>
struct weft::Mechanism<Bf16ButDoubles> {
  struct Rules : weft::precision::Rules {
    using weft::precision::Rules::Rules;
    at::ScalarType parameter_dtype(torch::nn::Module const& owner, std::string const& name,
                                   at::Tensor const& parameter) const override {
      return parameter.scalar_type() == at::kDouble ? at::kDouble
                                                    : weft::precision::Rules::parameter_dtype(owner, name, parameter);
    }
  };
};

TEST_CASE("gradients of fp64 among those of bf16 are averaged in fp64", "[precision][data_parallel]") {
  on<Ddp<Bf16ButDoubles>>(2, [](auto& fabric) {
    auto model = fabric.setup(Double());
    double const small = std::ldexp(1, -40);
    fabric.backward(model(fabric.global_rank() == 0 ? 1.0 : 1 + 2 * small));
    expect(model->w.grad().eq(1 + small).all().template item<bool>(), "no bit is lost");
  });
}

TEST_CASE("gradients of bf16 are averaged in fp32, or as the config says", "[precision][data_parallel]") {
  on<Ddp<weft::Bf16>>(4, [](auto& fabric) {
    auto model = fabric.setup(Pair());
    // Three times 0.65625 would vanish, one after another, beside a 256 of 8 bits.
    auto const bytes = bytes_of_backward(fabric, model(at::full({2}, fabric.global_rank() == 0 ? 256.f : 0.65625f)));
    expect(model->w.grad().scalar_type() == at::kBFloat16 && model->w.grad().to(at::kFloat).equal(at::full({2}, 64.5f)),
           "the average, in the parameter's dtype");
    expect(bytes == 2 * 4, "two elements of fp32: " + std::to_string(bytes));
  });
  on<Ddp<Bf16Reduced>>(2, [](auto& fabric) {
    auto model = fabric.setup(Pair());
    auto const bytes = bytes_of_backward(fabric, model(at::full({2}, fabric.global_rank() + 1.f)));
    expect(bytes == 2 * 2 && model->w.grad().to(at::kFloat).equal(at::full({2}, 1.5f)),
           "two elements of bf16: " + std::to_string(bytes));
  });
}

TEST_CASE("MixedPrecision<Fp32, Bf16> under DDP sends gradients of fp32 in bf16", "[precision][data_parallel]") {
  using Run = Ddp<weft::MixedPrecision<weft::Fp32, weft::Bf16>>;
  on<Run>(2, [](Run& fabric) {
    auto model = fabric.setup(Pair());
    auto const bytes = bytes_of_backward(fabric, model(at::full({2}, 1 + 1.0 / 512)));
    expect(model->w.grad().scalar_type() == at::kFloat && model->w.grad()[0].item<float>() == 1.f,
           "rounded to 8 bits on the way");
    expect(bytes == 2 * 2, "two elements of two bytes: " + std::to_string(bytes));
  });
}

TEST_CASE("a hook of the strategy's own has the last word on how gradients travel", "[precision][data_parallel]") {
  using Run = Ddp<weft::Bf16, weft::CommHook<weft::Fp16Compress>>;
  on<Run>(2, [](Run& fabric) {
    auto model = fabric.setup(Pair());
    fabric.backward(model(at::full({2}, fabric.global_rank() + 1.f)));
    expect(model->w.grad().to(at::kFloat).equal(at::full({2}, 1.5f)), "the average");
  });
}

TEST_CASE("every precision trains on ranks like one process on their batches", "[precision][data_parallel]") {
  auto const train = []<class Run>(std::type_identity<Run>, int world, double tolerance) {
    INFO(Run::composition::precision::name);
    on<Run>(world, [world, tolerance](Run& fabric) {
      auto const build = [] {
        torch::manual_seed(5);
        return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::Tanh(),
                                     torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})), torch::nn::Linear(8, 1));
      };
      using One = weft::Fabric<weft::SingleDevice, weft::On<weft::Cpu>, typename Run::composition::precision>;
      auto [model, optimizer] = fabric.setup(build(), weft::SGD{.lr = 0.1});
      auto const all = at::randn({4, 6 * world, 6});
      for (int step = 0; step < 4; ++step) {
        fabric.backward(model(all[step].narrow(0, 6 * fabric.global_rank(), 6)).square().mean());
        expect(optimizer.step(), "a step");
        optimizer.zero_grad();
      }
      // The same in this process alone, by the module that a precision makes of it.
      auto reference = build();
      weft::model::convert(*reference, weft::precision::Rules(One::composition::precision_config), false);
      auto alone = weft::SGD{.lr = 0.1}.make([&] {
        std::vector<weft::optim::NamedParameter> parameters;
        for (auto const& item : reference->named_parameters()) parameters.push_back({item.key(), item.value()});
        return parameters;
      }());
      for (int step = 0; step < 4; ++step) {
        at::Tensor y;
        {
          auto const scope = fabric.autocast();
          auto const x = Run::composition::precision::config.autocast
                             ? all[step]
                             : all[step].to(weft::precision::dtype_of(Run::composition::precision::config.computed));
          y = reference->forward(x);
        }
        y.to(at::kFloat).square().mean().backward();
        alone->step();
        weft::optim::zero_grad(weft::optim::parameters_of(*alone));
      }
      for (std::size_t i = 0; i < model.parameters().size(); ++i) {
        auto const ours = model.parameters()[i].detach().to(at::kDouble),
                   theirs = reference->parameters()[i].detach().to(at::kDouble);
        expect(relative_difference(ours, theirs) < tolerance,
               "parameter " + std::to_string(i) + ": " + std::to_string(relative_difference(ours, theirs)));
      }
    });
  };
  for (int const world : {1, 2, 3}) {
    train(std::type_identity<Ddp<weft::Fp64>>(), world, 1e-7);  // the loss is in fp32
    train(std::type_identity<Ddp<weft::Bf16>>(), world, 2e-2);
    train(std::type_identity<Ddp<weft::Bf16Mixed>>(), world, 2e-2);
    train(std::type_identity<Ddp<Scaled>>(), world, 1e-5);
  }
}

TEST_CASE(
    "NUM-09: bf16 gradients of one bucket from an earlier pass and from the last one are reduced as one dtype, under "
    "DDP",
    "[precision][data_parallel][known]") {
  using Run = Ddp<weft::Bf16, weft::FindUnused>;
  on<Run>(2, [](Run& fabric) {
    auto model = fabric.setup(Branches());
    auto const x = at::tensor({1.f, 2.f, 3.f}) * (fabric.global_rank() + 1);
    {
      auto const guard = fabric.no_backward_sync(model);
      fabric.backward(model(x, false));
    }
    fabric.backward(model(x, true));
    expect(model->a.grad().to(at::kFloat).equal(at::tensor({3.f, 6.f, 9.f})) &&
               model->b.grad().to(at::kFloat).equal(at::tensor({3.f, 6.f, 9.f})),
           "both are averages");
  });
}
