#include "ranks.hpp"

#include <weft/nn/linear.hpp>

using namespace test;

namespace {

/// A weight whose gradient each rank chooses.
struct MatrixImpl : torch::nn::Module {
  MatrixImpl(int64_t rows, int64_t columns) {
    weight = register_parameter("weight", torch::zeros({rows, columns}));
    bias = register_parameter("bias", torch::zeros({rows}));
  }
  at::Tensor forward(at::Tensor const& of_weight, at::Tensor const& of_bias) {
    return (weight * of_weight).sum() + (bias * of_bias).sum();
  }
  at::Tensor weight, bias;
};
TORCH_MODULE(Matrix);

at::Tensor noise(std::vector<int64_t> sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

/// What the last step's gradient of the weight is on rank 0, after `steps` steps with the same gradients.
template <class Hook>
std::vector<at::Tensor> weight_gradients(int world, int steps, std::function<at::Tensor(int rank)> gradient) {
  using Strategy = weft::DDP<weft::CommHook<Hook>>;
  return on_ranks<Strategy>(world, [=](Run<Strategy>& fabric) {
    auto const mine = gradient(fabric.global_rank());
    auto [model, optimizer] = fabric.setup(Matrix(mine.size(0), mine.size(1)), weft::SGD{.lr = 0.0});
    std::vector<at::Tensor> seen;
    for (int step = 0; step < steps; ++step) {
      fabric.backward(model(mine, at::full({mine.size(0)}, fabric.global_rank() + 1.0)));
      seen.push_back(model->weight.grad().clone());
      auto const all = fabric.all_gather(seen.back());
      for (int64_t rank = 0; rank < all.size(0); ++rank)
        expect(all[rank].equal(all[0]), "equal gradients on all ranks");
      expect(relative_difference(model->bias.grad(), at::full({mine.size(0)}, (fabric.world_size() + 1) / 2.0)) < 1e-2,
             "the plain average of the bias");
      optimizer.zero_grad();
    }
    return seen;
  });
}

at::Tensor average(int world, std::function<at::Tensor(int)> const& gradient) {
  auto sum = gradient(0).clone();
  for (int rank = 1; rank < world; ++rank) sum += gradient(rank);
  return sum / world;
}

}  // namespace

TEST_CASE("compressed averages are right to the precision of their dtype", "[data_parallel]") {
  auto const gradient = [](int rank) { return noise({6, 5}, static_cast<uint64_t>(rank)); };
  for (int world : {1, 2, 3, 4}) {
    auto const exact = average(world, gradient);
    CHECK(relative_difference(weight_gradients<weft::Bf16Compress>(world, 1, gradient)[0], exact) < 2e-2);
    CHECK(relative_difference(weight_gradients<weft::Fp16Compress>(world, 1, gradient)[0], exact) < 2e-3);
  }
}

TEST_CASE("compression halves the bytes of the reduction", "[data_parallel]") {
  auto const bytes = []<class Strategy>(std::type_identity<Strategy>) {
    return on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
      auto model = fabric.setup(Matrix(6, 5));
      fabric.recorder().start();
      fabric.backward(model(at::ones({6, 5}), at::ones({6})));
      std::size_t sum = 0;
      for (auto const& event : fabric.recorder().stop()) {
        expect(event.kind == weft::comm::Kind::all_reduce && event.phase == "backward", "an all_reduce in backward");
        sum += event.bytes;
      }
      return sum;
    });
  };
  CHECK(bytes(std::type_identity<weft::DDP<>>()) == 36 * 4);
  CHECK(bytes(std::type_identity<weft::DDP<weft::CommHook<weft::Bf16Compress>>>()) == 36 * 2);
  CHECK(bytes(std::type_identity<weft::DDP<weft::CommHook<weft::Fp16Compress>>>()) == 36 * 2);
}

TEST_CASE("PowerSGD gives a low-rank gradient exactly", "[data_parallel]") {
  // Rank r's gradient is u v_r^T: the average u mean(v)^T has rank one.
  auto const u = noise({16, 1}, 1);
  auto const gradient = [u](int rank) { return u.matmul(noise({1, 12}, 10 + static_cast<uint64_t>(rank))); };
  for (int world : {1, 2, 3}) {
    auto const seen = weight_gradients<weft::PowerSGD<1, 0>>(world, 3, gradient);
    for (auto const& approximation : seen) CHECK(relative_difference(approximation, average(world, gradient)) < 1e-5);
  }
}

TEST_CASE("PowerSGD averages plainly before start_iter", "[data_parallel]") {
  auto const gradient = [](int rank) { return noise({16, 12}, static_cast<uint64_t>(rank)); };
  auto const seen = weight_gradients<weft::PowerSGD<1, 2>>(2, 3, gradient);
  auto const exact = average(2, gradient);
  CHECK(relative_difference(seen[0], exact) < 1e-6);
  CHECK(relative_difference(seen[1], exact) < 1e-6);
  CHECK(relative_difference(seen[2], exact) > 1e-2);
}

TEST_CASE("PowerSGD's error feedback: what a step leaves out arrives later", "[data_parallel]") {
  // With the same gradient in every step, sum of outputs = steps * gradient - the last error, so the mean converges
  // like 1 / steps.
  auto const gradient = [](int rank) { return noise({16, 12}, static_cast<uint64_t>(rank)); };
  auto const exact = average(2, gradient);
  auto const distance = [&](int steps) {
    auto const seen = weight_gradients<weft::PowerSGD<2, 0>>(2, steps, gradient);
    auto sum = at::zeros_like(exact);
    for (auto const& one : seen) sum += one;
    return relative_difference(sum / steps, exact);
  };
  double const after_10 = distance(10), after_40 = distance(40);
  CHECK(after_40 < 0.2);
  CHECK(after_40 < 0.5 * after_10);
}

TEST_CASE("PowerSGD goes on after an overflow: what it remembers stays finite", "[data_parallel]") {
  using Strategy = weft::DDP<weft::CommHook<weft::PowerSGD<1, 0>>>;
  auto const u = noise({16, 1}, 1);
  auto const gradient = [u](int rank) { return u.matmul(noise({1, 12}, 10 + static_cast<uint64_t>(rank))); };
  on_ranks<Strategy>(2, [=](Run<Strategy>& fabric) {
    auto [model, optimizer] = fabric.setup(Matrix(16, 12), weft::SGD{.lr = 0.0});
    for (int step = 0; step < 4; ++step) {
      auto mine = gradient(fabric.global_rank());
      if (step == 1 && fabric.global_rank() == 1) mine[3][4] = INFINITY;
      fabric.backward(model(mine, at::ones({16})));
      auto const seen = model->weight.grad().clone();
      optimizer.zero_grad();
      if (step == 1)
        expect(!seen.isfinite().all().item<bool>(), "a loss scaler sees the overflow, on each rank");
      else
        expect(relative_difference(seen, average(2, gradient)) < 1e-5, "step " + std::to_string(step) + " is exact");
    }
    return 0;
  });
}

TEST_CASE("PowerSGD sends (rows + columns) * rank of a matrix, and small ones whole", "[data_parallel]") {
  weft::data_parallel::LowRank const hook(2, 0);
  CHECK(hook.elements_sent({at::empty({16, 12})}) == (16 + 12) * 2);
  CHECK(hook.elements_sent({at::empty({4, 4})}) == 16);  // (4 + 4) * 2 * 2 is not below 16
  CHECK(hook.elements_sent({at::empty({100}), at::empty({})}) == 101);
  using Strategy = weft::DDP<weft::CommHook<weft::PowerSGD<2, 0>>>;
  auto const bytes = on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
    auto model = fabric.setup(Matrix(16, 12));
    fabric.recorder().start();
    fabric.backward(model(noise({16, 12}, 3), at::ones({16})));
    std::size_t sum = 0;
    for (auto const& event : fabric.recorder().stop()) sum += event.bytes;
    return sum;
  });
  CHECK(bytes == ((16 + 12) * 2 + 16) * 4);
}

TEST_CASE("buckets: their number follows from their size, and they are reduced while backward still runs",
          "[data_parallel]") {
  struct Log {
    std::vector<std::string> events;
    static Log& get() {
      static Log log;
      return log;
    }
  };
  struct Watch {
    at::Tensor operator()(c10d::GradBucket& bucket, weft::comm::Communicator& ranks) {
      Log::get().events.push_back("reduce " + std::to_string(bucket.getIndex()));
      auto buffer = bucket.getBuffer();
      ranks.all_reduce(buffer, weft::ReduceOp::average);
      return buffer;
    }
  };
  using Strategy = weft::DDP<weft::CommHook<Watch>, weft::Bucket<4 * 9 * 4, 1>>;
  auto const [first, second] = on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
    torch::nn::Sequential module;
    for (int i = 0; i < 4; ++i) module->push_back(torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
    auto model = fabric.setup(module);
    auto const parameters = model.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].register_hook(
          [i](at::Tensor const&) { Log::get().events.push_back("gradient " + std::to_string(i)); });
    std::vector<std::vector<std::string>> steps;
    for (int step = 0; step < 3; ++step) {
      Log::get().events.clear();
      fabric.backward(model(at::ones({1, 3})).sum());
      steps.push_back(Log::get().events);
    }
    return std::pair(steps[0], steps[2]);
  });
  // Caps of 1 and 144 bytes, 36 bytes a parameter: one alone, then the three others.
  CHECK(first ==
        std::vector<std::string>{"gradient 3", "reduce 0", "gradient 2", "gradient 1", "gradient 0", "reduce 1"});
  CHECK(second == first);
}

TEST_CASE("buckets are rebuilt in the order in which gradients came", "[data_parallel]") {
  struct Indices {
    static std::vector<std::vector<int64_t>>& get() {
      static std::vector<std::vector<int64_t>> all;
      return all;
    }
    at::Tensor operator()(c10d::GradBucket& bucket, weft::comm::Communicator& ranks) {
      std::vector<int64_t> sizes;
      for (auto const& gradient : bucket.getGradients()) sizes.push_back(gradient.numel());
      get().push_back(sizes);
      auto buffer = bucket.getBuffer();
      ranks.all_reduce(buffer, weft::ReduceOp::average);
      return buffer;
    }
  };
  struct BackToFrontImpl : torch::nn::Module {  // registered in the order in which it is used last to first
    BackToFrontImpl() {
      last = register_parameter("last", torch::ones({3}));
      middle = register_parameter("middle", torch::ones({2}));
      first = register_parameter("first", torch::ones({1}));
    }
    at::Tensor forward() {
      auto const one = (first * 2).sum();
      auto const two = (one * middle).sum();
      return (two * last).sum();
    }
    at::Tensor last, middle, first;
  };
  using Strategy = weft::DDP<weft::CommHook<Indices>>;
  auto const sizes = on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
    auto model = fabric.setup(std::make_shared<BackToFrontImpl>());
    for (int step = 0; step < 3; ++step) fabric.backward(model());
    return Indices::get();
  });
  REQUIRE(sizes.size() == 3);
  CHECK(sizes[0] == std::vector<int64_t>{1, 2, 3});  // the reverse of registration: a guess
  CHECK(sizes[1] == std::vector<int64_t>{3, 2, 1});  // as they came
  CHECK(sizes[2] == sizes[1]);
}
