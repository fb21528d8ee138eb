#include "pieces.hpp"

#include <weft/nn/linear.hpp>

using namespace test;
using weft::FSDP, weft::FullShard, weft::ShardGradOp, weft::NoShard, weft::Bucket, weft::AccumulateSharded;

namespace {

template <class Function>
void for_each_sharding(Function const& f) {
  for_each_strategy<FSDP<FullShard, Pieces, Bucket<1>>, FSDP<FullShard, Pieces>,
                    FSDP<FullShard, Pieces, Bucket<1>, AccumulateSharded>, FSDP<ShardGradOp, Pieces, Bucket<1>>,
                    FSDP<ShardGradOp, Pieces, AccumulateSharded>, FSDP<NoShard, Pieces, Bucket<1>>,
                    FSDP<NoShard, Pieces, AccumulateSharded>>(f);
}

/// A unit that uses one of its branches, or both.
struct ForkedImpl : torch::nn::Module {
  ForkedImpl() {
    a = register_module("a", torch::nn::Linear(6, 5));
    b = register_module("b", torch::nn::Linear(6, 5));
  }
  at::Tensor forward(at::Tensor const& x, bool both) { return both ? a(x) + b(x) : a(x); }
  torch::nn::Linear a = nullptr, b = nullptr;
};
WEFT_MODULE(Forked);

struct ForkedRootImpl : torch::nn::Module {
  ForkedRootImpl() { forked = register_module("forked", Forked()); }
  at::Tensor forward(at::Tensor const& x, bool both) { return forked->forward(x, both); }
  Forked forked = nullptr;
};
TORCH_MODULE(ForkedRoot);

/// Passes over one Row, whose gradient sums are all the factor.
template <class Strategy>
struct Passes {
  explicit Passes(Run<Strategy>& it) : fabric(it) {}

  at::Tensor forward(double factor) { return model(at::full({1}, factor)).sum(); }
  /// Rank r has (r + 1) times the factor.
  void pass(double factor, bool sync) {
    auto const guard = fabric.no_backward_sync(model, !sync);
    fabric.backward(forward(factor * (fabric.global_rank() + 1)));
  }
  double mean(double factor) const { return factor * (fabric.world_size() + 1) / 2; }
  void expect_sums(double factor, std::string const& what) {
    auto const sums = gradient_sums(model);
    expect(all_are(sums, mean(factor)), what + ": " + std::to_string(mean(factor)) + ", not " + text_of(sums));
  }

  Run<Strategy>& fabric;
  weft::Model<Row> model = fabric.setup(Row());
};

template <class Function>
void on_each_sharding(std::vector<int> const& worlds, Function const& f) {
  for_each_sharding([&]<class Strategy>(std::type_identity<Strategy>) {
    for (int world : worlds)
      CHECK(on_ranks<Strategy>(world, [&](Run<Strategy>& fabric) {
        f(fabric, Passes<Strategy>(fabric));
        return 1;
      }));
  });
}

}  // namespace

TEST_CASE("NUM-05: accumulation in every pattern of synchronized and unsynchronized passes, under each sharding",
          "[shard][known]") {
  on_each_sharding({1, 2, 3}, [](auto&, auto passes) {
    for (auto const& pattern : std::vector<std::vector<int>>{
             {1, 0, 0, 1}, {0, 1, 0, 1}, {1, 1, 1, 1}, {0, 0, 0, 1}, {1, 1, 0, 1}, {0, 0, 1, 1}}) {
      double factor = 1;
      std::string text = "after";
      for (int sync : pattern) {
        passes.pass(factor, sync);
        factor *= 10;
        text += sync ? " 1" : " 0";
      }
      passes.expect_sums(1111, text);
      for (auto& parameter : passes.model.parameters()) parameter.mutable_grad().reset();
    }
  });
}

TEST_CASE("zero_grad between passes drops what was summed, reduced or not, in both ways", "[shard]") {
  on_each_sharding({1, 2, 4}, [](auto& fabric, auto passes) {
    auto optimizer = fabric.setup_optimizers(passes.model, weft::SGD{.lr = 0.0});
    torch::optim::SGD torchs(passes.model.parameters(), 0.0);
    for (bool to_none : {true, false})
      for (bool by_torch : {false, true})
        for (auto const& pattern : std::vector<std::vector<int>>{{0}, {1}, {1, 0}, {0, 1}, {0, 0}}) {
          for (int sync : pattern) passes.pass(7, sync);
          by_torch ? torchs.zero_grad(to_none) : optimizer.zero_grad(to_none);
          for (auto const& parameter : passes.model.parameters())
            expect(parameter.grad().defined() != to_none, "zeros or nothing");
          passes.pass(1, false);
          passes.pass(10, true);
          passes.expect_sums(
              11, std::string(to_none ? "none" : "zeros") + " after " + std::to_string(pattern.size()) + " passes");
          optimizer.zero_grad();
        }
  });
}

TEST_CASE("gradients that are not reduced yet show as this rank's part of its own sum", "[shard]") {
  on_each_sharding({2}, [](auto& fabric, auto passes) {
    passes.pass(1, false);
    passes.pass(1, false);
    bool const reduced = fabric.config().accumulate_sharded, is_cut = fabric.config().sharding.shard_parameters;
    double const expected = reduced ? passes.mean(2) : 2.0 * (fabric.global_rank() + 1);
    for (auto const& row : passes.model.table().rows()) {
      auto const& grad = row.tensor.grad();
      expect(grad.defined() && grad.sizes() == row.tensor.sizes() && (!is_cut || grad.dim() == 1),
             "a gradient like the parameter");
      expect((grad * row.global_numel() - expected).abs().lt(1e-5).all().template item<bool>(), "this rank's own sum");
    }
    passes.pass(1, true);
    passes.expect_sums(3, "reduced at last");
  });
}

TEST_CASE("NUM-08: two forwards, then two backwards: each counts, synchronized or not", "[shard][known]") {
  on_each_sharding({1, 2, 3}, [](auto& fabric, auto passes) {
    double const weight = fabric.global_rank() + 1;
    for (int round = 0; round < 2; ++round) {
      for (bool sync : {true, false}) {
        auto const guard = fabric.no_backward_sync(passes.model, !sync);
        auto const one = passes.forward(2 * weight), two = passes.forward(3 * weight);
        fabric.backward(two);
        fabric.backward(one);
      }
      passes.pass(1, true);
      passes.expect_sums(5 + 5 + 1, "two by two");
      for (auto& parameter : passes.model.parameters()) parameter.mutable_grad().reset();
    }
    // The other way round.
    auto const one = passes.forward(2 * weight), two = passes.forward(3 * weight);
    fabric.backward(one);
    fabric.backward(two);
    passes.expect_sums(5, "the first first");
  });
}

TEST_CASE("several forwards under one loss, a graph kept for a second pass, and two forwards each with its backward",
          "[shard]") {
  on_each_sharding({1, 2, 3}, [](auto& fabric, auto passes) {
    double const weight = fabric.global_rank() + 1;
    auto const loss = passes.forward(2 * weight) + passes.forward(3 * weight) + passes.forward(4 * weight);
    loss.backward({}, /*retain_graph=*/true);
    passes.expect_sums(9, "one loss");
    {
      auto const guard = fabric.no_backward_sync(passes.model);
      loss.backward({}, /*retain_graph=*/true);
    }
    loss.backward();
    passes.expect_sums(27, "three times the same loss");
    fabric.backward(passes.forward(weight));
    fabric.backward(passes.forward(weight));
    passes.expect_sums(29, "two more");
  });
}

namespace {

/// root 3 { a 8, b 15 }: a runs before and after b.
struct TwiceImpl : torch::nn::Module {
  TwiceImpl() {
    w = register_parameter("w", torch::ones({3}));
    a = register_module("a", Piece(8));
    b = register_module("b", Piece(15));
  }
  at::Tensor forward(at::Tensor const& x) { return a(b(a(a(x * w.mean())))); }
  at::Tensor w;
  Piece a = nullptr, b = nullptr;
};
TORCH_MODULE(Twice);

}  // namespace

TEST_CASE(
    "a unit that runs several times in a forward gets one gradient, also in a kept graph and after passes without "
    "synchronization",
    "[shard]") {
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    for (int world : {1, 2, 3})
      CHECK(on_ranks<Strategy>(world, [&](Run<Strategy>& fabric) {
        auto model = fabric.setup(Twice());
        double const weight = fabric.global_rank() + 1, mean = (world + 1) / 2.0;
        auto const forward = [&] { return model(at::full({1}, weight)).sum(); };
        auto const expect_sums = [&](double factor, std::string const& what) {
          auto const sums = gradient_sums(model);  // w, a, b
          expect(all_are({sums[0], sums[1] / 3, sums[2]}, factor * mean),
                 what + ": " + std::to_string(factor * mean) + ", not " + text_of(sums));
        };
        fabric.backward(forward());
        expect_sums(1, "once");
        auto const loss = forward();
        {
          auto const guard = fabric.no_backward_sync(model);
          loss.backward({}, true);
        }
        loss.backward({}, true);
        expect_sums(3, "twice more, by one graph");
        loss.backward();
        expect_sums(4, "and once more");
        fabric.backward(forward() + forward());
        expect_sums(6, "two forwards");
        return 1;
      }));
  });
}

TEST_CASE("the guard restores what was set before, also when it nests or is not enabled", "[shard]") {
  using Strategy = FSDP<FullShard, Pieces>;
  CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
    Passes<Strategy> passes(fabric);
    fabric.recorder().start();
    {
      auto const outer = fabric.no_backward_sync(passes.model);
      {
        auto const inner = fabric.no_backward_sync(passes.model, false);
      }
      fabric.backward(passes.forward(1));
      {
        auto const inner = fabric.no_backward_sync(passes.model, true);
      }
      fabric.backward(passes.forward(1));
    }
    for (auto const& event : fabric.recorder().stop())
      expect(event.kind == weft::comm::Kind::all_gather, "gathers alone");
    fabric.recorder().start();
    {
      auto const not_enabled = fabric.no_backward_sync(passes.model, false);
    }
    fabric.backward(passes.forward(1));
    int reductions = 0;
    for (auto const& event : fabric.recorder().stop()) reductions += event.kind == weft::comm::Kind::reduce_scatter;
    expect(reductions == 2, "two reductions");
    return 1;
  }));
}

TEST_CASE("NUM-03: mean of means: ranks weigh alike; a sum over a global count weighs tokens alike", "[shard][known]") {
  for_each_strategy<FSDP<FullShard, Pieces>, FSDP<NoShard, Pieces, Bucket<1>>>(
      []<class Strategy>(std::type_identity<Strategy>) {
        auto const [plain, weighted] = on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
          auto model = fabric.setup(Row());
          // Rank 0 has 3 valid tokens with gradient 1 each, rank 1 has one with gradient 5.
          double const sum = fabric.global_rank() == 0 ? 3 : 5, count = fabric.global_rank() == 0 ? 3 : 1;
          fabric.backward(model(at::full({1}, sum)).sum() / count);
          auto const plain = gradient_sums(model);
          for (auto& parameter : model.parameters()) parameter.mutable_grad().reset();
          double const global_count = fabric.all_reduce(count, weft::ReduceOp::sum);
          fabric.backward(model(at::full({1}, sum)).sum() * (fabric.world_size() / global_count));
          return std::pair(plain, gradient_sums(model));
        });
        CHECK(all_are(plain, 3));
        CHECK(all_are(weighted, 2));
      });
}

TEST_CASE("gradients changed in place, or replaced, while a sum is held: zeroed on all ranks or refused on all",
          "[shard]") {
  using Strategy = FSDP<FullShard, Pieces>;
  auto const loss = [](auto& fabric, auto& model, double factor) {
    fabric.backward(model(at::full({1}, factor)).sum());
  };
  auto const run = [&](auto const& between, bool synced_before) {
    return on_ranks<Strategy>(4, [&, synced_before](Run<Strategy>& fabric) {
      auto model = fabric.setup(Row());
      if (synced_before) loss(fabric, model, 1);
      {
        auto const guard = fabric.no_backward_sync(model);
        loss(fabric, model, 10);
      }
      {
        at::NoGradGuard const no_grad;
        for (auto const& parameter : model.parameters()) between(parameter);
      }
      auto const message = message_of([&] { loss(fabric, model, 100); });
      if (message != "nothing was thrown") return message;
      auto sums = gradient_sums(model);
      for (auto& sum : sums) sum = std::round(sum * 1e3) / 1e3;
      return text_of(sums);
    });
  };
  auto const as_text = [](double sum) { return text_of({sum, sum, sum, sum}); };
  auto const zero = [](at::Tensor const& p) { p.mutable_grad().zero_(); };
  auto const replace = [](at::Tensor const& p) { p.mutable_grad() = at::zeros_like(p.grad()); };
  auto const touch = [](at::Tensor const& p) { p.mutable_grad().mul_(1.0); };
  auto const nothing = [](at::Tensor const&) {};
  CHECK(run(nothing, true) == as_text(111));
  CHECK(run(zero, true) == as_text(100));
  CHECK(run(zero, false) == as_text(100));
  CHECK(run(replace, false) == as_text(100));
  CHECK(run(touch, true) == as_text(111));  // what was reduced was touched, with the sum beside it
  CHECK_THAT(run(touch, false), Catch::Matchers::ContainsSubstring("was changed in place before it was reduced"));
}

TEST_CASE("NUM-09: bf16 gradients of one bucket from an earlier pass and from the last one are reduced as one dtype",
          "[shard][known]") {
  // Branch a alone without synchronization, then both: each rank its own input, the average that of fp32 to bf16's
  // precision.
  auto const gradients = [](auto& fabric, at::ScalarType dtype) {
    fabric.seed_everything(2);
    ForkedRoot module;
    module->to(dtype);
    auto model = fabric.setup(std::move(module));
    for (bool const both : {false, true}) {
      auto const guard = fabric.no_backward_sync(model, !both);
      auto const generator = at::detail::createCPUGenerator(static_cast<uint64_t>(7 + 2 * fabric.global_rank() + both));
      fabric.backward(model(at::randn({4, 6}, generator).to(dtype), both).pow(2).mean());
    }
    auto whole = unsharded_gradients(model);
    for (auto& gradient : whole) {
      expect(gradient.scalar_type() == dtype, "a gradient has its parameter's dtype");
      gradient = gradient.to(at::kFloat);
    }
    return whole;
  };
  using Forks = weft::WrapPolicy<Forked>;
  for_each_strategy<FSDP<FullShard, Forks>, FSDP<FullShard, Forks, AccumulateSharded>, FSDP<ShardGradOp, Forks>,
                    FSDP<NoShard, Forks>>([&]<class Strategy>(std::type_identity<Strategy>) {
    for (int const world : {1, 2, 3}) {
      auto const exact = on_ranks<Strategy>(world,
                                            [&](Run<Strategy>& fabric) { return gradients(fabric, at::kFloat); });
      auto const rounded = on_ranks<Strategy>(world,
                                              [&](Run<Strategy>& fabric) { return gradients(fabric, at::kBFloat16); });
      REQUIRE(rounded.size() == 4);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        CHECK(relative_difference(rounded[i], exact[i]) < 0.03);
        CHECK(exact[i].abs().max().template item<double>() > 0.01);
      }
    }
  });
}
