#include "differing_models.hpp"
#include "pieces.hpp"

#include <weft/nn/embedding.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::FSDP, weft::FullShard, weft::ShardGradOp, weft::NoShard, weft::Bucket, weft::WrapPolicy;

namespace {

/// A unit that throws when it is told to.
struct TripImpl : PieceImpl {
  TripImpl() : PieceImpl(15) {}
  at::Tensor forward(at::Tensor const& x) {
    if (trips) throw std::runtime_error("stumbled in forward");
    return PieceImpl::forward(x);
  }
  bool trips = false;
};
WEFT_MODULE(Trip);
struct TripRowImpl : torch::nn::Module {
  TripRowImpl() {
    w = register_parameter("w", torch::ones({3}));
    a = register_module("a", Piece(8));
    b = register_module("b", Trip());
    c = register_module("c", Piece(24));
  }
  at::Tensor forward(at::Tensor const& x) { return c(b(a(x * w.mean()))); }
  at::Tensor w;
  Piece a = nullptr, c = nullptr;
  Trip b = nullptr;
};
TORCH_MODULE(TripRow);

using Unit = FSDP<FullShard, Pieces, Bucket<1>>;
template <class Function>
void for_each_sharding(Function const& f) {
  using Wrap = WrapPolicy<Piece, Trip>;
  for_each_strategy<FSDP<FullShard, Wrap, Bucket<1>>, FSDP<FullShard, Wrap>, FSDP<ShardGradOp, Wrap, Bucket<1>>,
                    FSDP<NoShard, Wrap>>(f);
}

template <class Run>
at::Tensor input(Run& fabric) {
  return at::full({1}, 2.0 * (fabric.global_rank() + 1) / (fabric.world_size() + 1));
}

}  // namespace

TEST_CASE("an L2 term over parameters() outside of the model is refused by name, before forward and after it",
          "[shard]") {
  for (bool after : {false, true})
    for_each_strategy<Unit, FSDP<ShardGradOp, Pieces>>([&]<class Strategy>(std::type_identity<Strategy>) {
      auto const message = failure_on_ranks<Strategy>(2, [=](Run<Strategy>& fabric) {
        auto model = fabric.setup(Row());
        auto const l2 = [&] {
          auto sum = at::zeros({});
          for (auto const& parameter : model.parameters()) sum = sum + parameter.pow(2).sum();
          return sum;
        };
        auto const early = after ? at::Tensor() : l2();
        auto const loss = model(input(fabric)).sum();
        fabric.backward(loss + (after ? l2() : early));
      });
      CHECK_THAT(message, ContainsSubstring("it was used while it was a shard") && ContainsSubstring("weight_decay") &&
                              ContainsSubstring("parameter w past the root"));
    });
}

TEST_CASE("ranks whose models differ: every rank names the first difference", "[shard]") {
  check_differing_models<FSDP<>>();
}

TEST_CASE("an optimizer of other parameters is refused, in setup and when clipping", "[shard]") {
  CHECK(on_ranks<Unit>(2, [](Run<Unit>& fabric) {
    auto model = fabric.setup(Row());
    torch::optim::SGD foreign(std::vector<at::Tensor>{model->w, torch::ones({2}, at::requires_grad())}, 0.1);
    expect(contains(message_of([&] { fabric.setup_optimizers(model, foreign); }),
                    "the optimizer's parameter 1 of group 0, of shape [2], does not belong to this model"),
           "a refusal");
    auto other = fabric.setup(Row());
    auto optimizer = fabric.setup_optimizers(other, weft::SGD{.lr = 0.1});
    expect(contains(message_of([&] { fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0}); }),
                    "does not belong to this model"),
           "a refusal");
    return 1;
  }));
}

TEST_CASE("integer parameters are refused by name", "[shard]") {
  struct CountingImpl : torch::nn::Module {
    CountingImpl() {
      w = register_parameter("w", torch::ones({2}));
      count = register_parameter("count", torch::ones({2}, at::kLong), /*requires_grad=*/false);
    }
    at::Tensor forward(at::Tensor const& x) { return x * w.sum(); }
    at::Tensor w, count;
  };
  CHECK_THAT(failure_on_ranks<FSDP<>>(2, [](Run<FSDP<>>& fabric) { fabric.setup(std::make_shared<CountingImpl>()); }),
             ContainsSubstring("parameter count has dtype Long") && ContainsSubstring("register it as a buffer"));
}

TEST_CASE("a sparse gradient is refused by name", "[shard]") {
  struct SparseImpl : torch::nn::Module {
    SparseImpl() {
      embedding = register_module("embedding", torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 3).sparse(true)));
    }
    at::Tensor forward(at::Tensor const& x) { return embedding(x); }
    torch::nn::Embedding embedding = nullptr;
  };
  CHECK_THAT(failure_on_ranks<FSDP<>>(
                 2,
                 [](Run<FSDP<>>& fabric) {
                   fabric.backward(fabric.setup(std::make_shared<SparseImpl>())(at::ones({2}, at::kLong)).sum());
                 }),
             ContainsSubstring("embedding.weight has a gradient of layout Sparse") &&
                 ContainsSubstring("without sparse(true)"));
}

TEST_CASE("a rank that throws in forward or in backward ends the job with its message", "[shard]") {
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    for (bool in_backward : {false, true}) {
      auto const message = failure_on_ranks<Strategy>(3, [=](Run<Strategy>& fabric) {
        auto [model, optimizer] = fabric.setup(TripRow(), weft::SGD{.lr = 0.1});
        for (int step = 0; step < 5; ++step) {
          bool const throws = step == 2 && fabric.global_rank() == 1;
          model->b->trips = throws && !in_backward;
          auto x = input(fabric).requires_grad_();
          if (throws && in_backward)
            x.register_hook([](at::Tensor const&) -> at::Tensor { throw std::runtime_error("stumbled in backward"); });
          fabric.backward(model(x).sum());
          optimizer.step();
          optimizer.zero_grad();
        }
      });
      CHECK_THAT(message, ContainsSubstring("rank 1 of 3 failed") &&
                              ContainsSubstring(in_backward ? "stumbled in backward" : "stumbled in forward"));
    }
  });
}

TEST_CASE("an exception in forward or backward on all ranks leaves a model that trains on as if nothing had been",
          "[shard]") {
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    auto const run = [](bool disturb) {
      return on_ranks<Strategy>(2, [=](Run<Strategy>& fabric) {
        auto [model, optimizer] = fabric.setup(TripRow(), weft::SGD{.lr = 0.1});
        for (int step = 0; step < 6; ++step) {
          if (disturb && step % 2 == 1) {
            // In the second unit's forward, at the model's output, between units, and at a parameter.
            bool throws = true;
            auto const stumble = [&throws](at::Tensor const& gradient) -> at::Tensor {
              if (throws) throw std::runtime_error("stumbled");
              return gradient;
            };
            model->b->trips = true;
            for (int twice = 0; twice < 2; ++twice)
              expect(message_of([&, &model = model] { model(input(fabric)); }) == "stumbled in forward",
                     "the exception");
            model->b->trips = false;
            auto out = model(input(fabric));
            out.register_hook(stumble);
            expect(contains(message_of([&] { fabric.backward(out.sum()); }), "stumbled"), "the exception");
            auto x = input(fabric).requires_grad_();
            x.register_hook(stumble);
            expect(contains(message_of([&, &model = model] { fabric.backward(model(x).sum()); }), "stumbled"),
                   "the exception");
            optimizer.zero_grad();
            // What was summed before, and what of the failed pass was reduced, is there until it is zeroed, as in plain
            // LibTorch.
            fabric.backward(model(input(fabric)).sum());
            auto z = input(fabric).requires_grad_();
            z.register_hook(stumble);
            expect(contains(message_of([&, &model = model] { fabric.backward(model(z).sum()); }), "stumbled"),
                   "the exception");
            for (auto const& row : model.table().rows())
              expect(
                  (row.placements.empty() || row.tensor.dim() == 1) && row.tensor.grad().sizes() == row.tensor.sizes(),
                  "parts");
            optimizer.zero_grad();
            // Twice in a row, then another pass without a forward between.
            auto const kept = model(input(fabric)).sum();
            auto y = input(fabric).requires_grad_();
            y.register_hook(stumble);
            expect(contains(message_of([&, &model = model] { fabric.backward(model(y).sum()); }), "stumbled"),
                   "the exception");
            optimizer.zero_grad();
            fabric.backward(kept);
            optimizer.zero_grad();
            throws = false;
          }
          fabric.backward(model(input(fabric)).sum());
          optimizer.step();
          optimizer.zero_grad();
        }
        return whole_weights(fabric, model);
      });
    };
    auto const calm = run(false), disturbed = run(true);
    for (std::size_t i = 0; i < calm.size(); ++i) CHECK(relative_difference(disturbed[i], calm[i]) < 1e-6);
  });
}

TEST_CASE("a parameter that is resized, converted or replaced after setup is named with what it was and is",
          "[shard]") {
  for_each_strategy<Unit, FSDP<ShardGradOp, Pieces>, FSDP<NoShard, Pieces>>(
      []<class Strategy>(std::type_identity<Strategy>) {
        for (std::string const how : {"larger", "wider", "all", "resized"}) {
          auto const message = failure_on_ranks<Strategy>(2, [how](Run<Strategy>& fabric) {
            auto model = fabric.setup(Row());
            at::NoGradGuard const no_grad;
            if (how == "larger") model->a->w.set_data(at::ones({9}));
            if (how == "wider") model->a->w.set_data(model->a->w.to(at::kDouble));
            if (how == "all") model->to(at::kDouble);
            if (how == "resized" && model->a->w.numel() > 1) model->a->w.set_data(model->a->w.narrow(0, 0, 1));
            at::AutoGradMode const with_grad(true);
            model(input(fabric));
          });
          INFO(how << ": " << message);
          CHECK_THAT(message,
                     ContainsSubstring(how == "all"       ? "parameter w was replaced since setup: it is ["
                                       : how == "resized" ? "parameter a.w was resized since setup, to [1], expected ["
                                                          : "parameter a.w was replaced since setup: it is ["));
          if (how == "larger") CHECK_THAT(message, ContainsSubstring("it is [9] of Float now, and was [8] of Float"));
          if (how == "wider") CHECK_THAT(message, ContainsSubstring("of Double now, and was [8] of Float"));
        }
      });
}

TEST_CASE("a layer that is replaced after setup is named", "[shard]") {
  for_each_strategy<Unit, FSDP<ShardGradOp, Pieces>, FSDP<NoShard, Pieces>>(
      []<class Strategy>(std::type_identity<Strategy>) {
        auto const message = failure_on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
          auto model = fabric.setup(Row());
          model->b = model->replace_module("b", Piece(15));
          fabric.backward(model(input(fabric)).sum());
        });
        CHECK_THAT(message, ContainsSubstring("parameter b.w was replaced since setup"));
      });
}

TEST_CASE("a module that is set up already is refused, until its wrapped model is gone", "[shard]") {
  CHECK(on_ranks<Unit>(2, [](Run<Unit>& fabric) {
    Row module;
    {
      auto model = fabric.setup(module);
      expect(contains(message_of([&] { fabric.setup(module); }), "this module is set up already"), "a refusal");
      fabric.backward(model(input(fabric)).sum());
    }
    Row other;
    auto model = fabric.setup(other);
    return 1;
  }));
}

TEST_CASE("LBFGS is refused where parameters are cut, and steps where they are whole", "[shard]") {
  CHECK(on_ranks<Unit>(2, [](Run<Unit>& fabric) {
    auto model = fabric.setup(Row());
    auto const message =
        message_of([&] { fabric.setup_optimizers(model, torch::optim::LBFGS(model.parameters(), 0.5)); });
    expect(contains(message, "LBFGS steps by dot products over whole parameters, but w is cut over ranks"), message);
    return 1;
  }));
  CHECK(on_ranks<FSDP<NoShard, Pieces>>(2, [](Run<FSDP<NoShard, Pieces>>& fabric) {
    auto model = fabric.setup(Row());
    auto optimizer = fabric.setup_optimizers(model, torch::optim::LBFGS(model.parameters(), 0.5));
    optimizer.zero_grad();
    fabric.backward(model(input(fabric)).sum());
    return 1;
  }));
}
