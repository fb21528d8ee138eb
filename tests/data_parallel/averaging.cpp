#include "ranks.hpp"

using namespace test;

namespace {

template <class Strategy>
at::Tensor gradients_of_ranks(int world, std::vector<double> factors) {
  return on_ranks<Strategy>(world, [=](Run<Strategy>& fabric) {
    auto [model, optimizer] = fabric.setup(Scalar(), weft::SGD{.lr = 1.0});
    fabric.backward(model(factors[static_cast<std::size_t>(fabric.global_rank())]));
    auto const norm = fabric.clip_gradients(model, optimizer, weft::ClipNorm{1e9});
    return fabric.all_gather(at::stack({model->w.grad(), norm}));
  });
}

struct SumInTwoSteps {  // a user's hook that answers at once
  at::Tensor operator()(c10d::GradBucket& bucket, weft::comm::Communicator& ranks) {
    auto sum = bucket.getBuffer();
    ranks.all_reduce(sum, weft::ReduceOp::sum);
    return sum.div_(ranks.size());
  }
};
struct Later {  // a user's hook that answers with a future
  weft::data_parallel::Future operator()(c10d::GradBucket& bucket, weft::comm::Communicator& ranks) {
    auto buffer = bucket.getBufferRef();
    buffer.div_(ranks.size());
    std::vector<at::Tensor> list{buffer};
    return ranks.backend()
        ->allreduce(list, c10d::AllreduceOptions())
        ->getFuture()
        ->then([buffer](c10::ivalue::Future&) { return c10::IValue(buffer); }, c10::TensorType::get());
  }
};

}  // namespace

TEST_CASE("NUM-01: averaging applied once on every variant of DDP", "[data_parallel][known]") {
  auto const check = [](at::Tensor const& seen) {
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(seen[rank][0].item<double>() == 3.0);
      CHECK(seen[rank][1].item<double>() == 3.0);
    }
  };
  check(gradients_of_ranks<weft::DDP<>>(2, {2, 4}));
  check(gradients_of_ranks<weft::DDP<weft::GradientsInBuckets<false>>>(2, {2, 4}));
  check(gradients_of_ranks<weft::DDP<weft::FindUnused>>(2, {2, 4}));
  check(gradients_of_ranks<weft::DDP<weft::StaticGraph>>(2, {2, 4}));
  check(gradients_of_ranks<weft::DDP<weft::CommHook<weft::AllReduce>>>(2, {2, 4}));
  check(gradients_of_ranks<weft::DDP<weft::CommHook<weft::Bf16Compress>>>(2, {2, 4}));
  check(gradients_of_ranks<weft::DDP<weft::CommHook<weft::Fp16Compress>>>(2, {2, 4}));
  check(gradients_of_ranks<weft::DDP<weft::CommHook<weft::PowerSGD<1, 0>>>>(2, {2, 4}));
  check(gradients_of_ranks<weft::DDP<weft::CommHook<weft::PowerSGD<>>>>(2, {2, 4}));
  check(gradients_of_ranks<weft::DDP<weft::CommHook<SumInTwoSteps>>>(2, {2, 4}));
  check(gradients_of_ranks<weft::DDP<weft::CommHook<Later>>>(2, {2, 4}));
}

TEST_CASE("NUM-04: fp16 gradients neither overflow nor vanish in the compressed average", "[data_parallel][known]") {
  using Fp16 = weft::DDP<weft::CommHook<weft::Fp16Compress>>;
  double const small = std::ldexp(1.0, -23);
  for (int world : {2, 4}) {
    auto const ranks = static_cast<std::size_t>(world);
    CHECK(gradients_of_ranks<Fp16>(world, std::vector<double>(ranks, 30000))[0][0].item<double>() == 30000.0);
    CHECK(gradients_of_ranks<Fp16>(world, std::vector<double>(ranks, small))[0][0].item<double>() == small);
  }
}

TEST_CASE("NUM-03: mean of means: DDP weighs ranks alike; a sum over a global count weighs tokens alike",
          "[data_parallel][known]") {
  auto const [plain, weighted] = on_ranks(2, [](Run<>& fabric) {
    auto model = fabric.setup(Scalar());
    // Rank 0 has 3 valid tokens with gradient 1 each, rank 1 has one with gradient 5.
    double const sum = fabric.global_rank() == 0 ? 3 : 5, count = fabric.global_rank() == 0 ? 3 : 1;
    fabric.backward(model(sum) / count);
    double const plain = model->w.grad().item<double>();
    model->w.mutable_grad() = at::Tensor();
    double const global_count = fabric.all_reduce(count, weft::ReduceOp::sum);
    fabric.backward(model(sum) * (fabric.world_size() / global_count));
    return std::pair(plain, model->w.grad().item<double>());
  });
  CHECK(plain == 3.0);
  CHECK(weighted == 2.0);
}

TEST_CASE("NUM-05: accumulation in every pattern of synchronized and unsynchronized passes", "[data_parallel][known]") {
  auto const pattern = GENERATE(std::vector<int>{1, 0, 0, 1}, std::vector<int>{0, 1, 0, 1},
                                std::vector<int>{1, 1, 1, 1}, std::vector<int>{0, 0, 0, 1});
  auto const run = [&]<class Strategy>(std::type_identity<Strategy>) {
    return on_ranks<Strategy>(2, [=](Run<Strategy>& fabric) {
      auto model = fabric.setup(Scalar());
      double factor = fabric.global_rank() + 1;
      for (int sync : pattern) {
        auto const guard = fabric.no_backward_sync(model, sync == 0);
        fabric.backward(model(factor));
        factor *= 10;
      }
      return fabric.all_gather(model->w.grad());
    });
  };
  auto const expected = at::full({2}, 1666.5);
  CHECK(run(std::type_identity<weft::DDP<>>()).equal(expected));
  CHECK(run(std::type_identity<weft::DDP<weft::GradientsInBuckets<false>>>()).equal(expected));
  CHECK(run(std::type_identity<weft::DDP<weft::FindUnused>>()).equal(expected));
  CHECK(run(std::type_identity<weft::DDP<weft::StaticGraph>>()).equal(expected));
}

TEST_CASE("NUM-08: two forwards, then two backwards: each is reduced", "[data_parallel][known]") {
  auto const run = [](bool sync) {
    return on_ranks(2, [=](Run<>& fabric) {
      auto model = fabric.setup(Scalar());
      // Rank 1's share is ten times rank 0's: a pass that is not reduced shows.
      double const weight = fabric.global_rank() == 0 ? 1 : 10;
      {
        auto const guard = fabric.no_backward_sync(model, !sync);
        auto const one = model(2 * weight), two = model(3 * weight);
        two.backward();
        one.backward();
      }
      return fabric.all_gather(model->w.grad());
    });
  };
  CHECK(run(true).equal(at::full({2}, 27.5)));
  CHECK(run(false).equal(at::tensor({5.0f, 50.0f})));
}

TEST_CASE("several forwards under one loss, and a graph kept for a second pass", "[data_parallel]") {
  auto const gradients = on_ranks(2, [](Run<>& fabric) {
    auto model = fabric.setup(Scalar());
    double const weight = fabric.global_rank() + 1;
    auto const loss = model(2 * weight) + model(3 * weight);
    loss.backward({}, /*retain_graph=*/true);
    auto const once = model->w.grad().clone();
    loss.backward();
    return at::stack({once, model->w.grad()});
  });
  CHECK(gradients.equal(at::tensor({7.5f, 15.0f})));
}

TEST_CASE("two backwards before the next forward, from the first step on, and training goes on", "[data_parallel]") {
  auto const run = []<class Strategy>(std::type_identity<Strategy>) {
    return on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
      auto model = fabric.setup(Scalar());
      double const weight = fabric.global_rank() + 1;
      std::vector<at::Tensor> seen;
      for (int step = 0; step < 3; ++step) {
        auto const one = model(2 * weight), two = model(3 * weight);
        fabric.backward(one);
        fabric.backward(two);
        seen.push_back(model->w.grad().clone());
        model->w.mutable_grad() = at::Tensor();
      }
      return fabric.all_gather(at::stack(seen));
    });
  };
  auto const expected = at::full({2, 3}, 7.5);
  CHECK(run(std::type_identity<weft::DDP<>>()).equal(expected));
  CHECK(run(std::type_identity<weft::DDP<weft::StaticGraph>>()).equal(expected));
  CHECK(run(std::type_identity<weft::DDP<weft::FindUnused>>()).equal(expected));
}

TEST_CASE("a hook that returns something else than the bucket is an error", "[data_parallel]") {
  struct Short {
    at::Tensor operator()(c10d::GradBucket& bucket, weft::comm::Communicator&) {
      return bucket.getBuffer().slice(0, 0, 0);
    }
  };
  using Strategy = weft::DDP<weft::CommHook<Short>>;
  CHECK_THAT(failure_on_ranks<Strategy>(2, [](Run<Strategy>& fabric) { fabric.backward(fabric.setup(Scalar())(1.0)); }),
             Catch::Matchers::ContainsSubstring("the hook returned 0 elements for bucket 0, expected 1"));
}

TEST_CASE("the guard restores what was set before, also when it nests or is not enabled", "[data_parallel]") {
  auto const seen = on_ranks(2, [](Run<>& fabric) {
    auto model = fabric.setup(Scalar());
    double const weight = fabric.global_rank() + 1;
    std::vector<double> seen;
    auto const pass = [&] {
      model->w.mutable_grad() = at::Tensor();
      fabric.backward(model(weight));
      seen.push_back(model->w.grad().item<double>());
    };
    {
      auto const outer = fabric.no_backward_sync(model);
      {
        auto const inner = fabric.no_backward_sync(model, false);
      }
      pass();
      {
        auto const inner = fabric.no_backward_sync(model, true);
      }
      pass();
    }
    pass();
    {
      auto const not_enabled = fabric.no_backward_sync(model, false);
    }
    pass();
    return seen;
  });
  CHECK(seen == std::vector<double>{1, 1, 1.5, 1.5});
}

TEST_CASE("a second derivative through the wrapped model is refused, not wrong", "[data_parallel]") {
  auto const message = on_ranks(2, [](Run<>& fabric) {
    auto model = fabric.setup(Scalar());
    auto const loss = model(3.0).pow(2);
    return message_of([&] { torch::autograd::grad({loss}, {model->w}, {}, true, /*create_graph=*/true); });
  });
  CHECK_THAT(message, Catch::Matchers::ContainsSubstring("create_graph"));
}
