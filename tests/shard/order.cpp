#include <c10/util/Exception.h>

#include "pieces.hpp"

using namespace test;
using weft::FSDP, weft::FullShard, weft::ShardGradOp, weft::NoShard, weft::Bucket;

namespace {

template <class Function>
void for_each_sharding(Function const& f) {
  for_each_strategy<FSDP<FullShard, Pieces, Bucket<1>>, FSDP<FullShard, Pieces>, FSDP<ShardGradOp, Pieces, Bucket<1>>,
                    FSDP<NoShard, Pieces>>(f);
}

template <class Run>
at::Tensor input(Run& fabric) {
  return at::full({1}, 2.0 * (fabric.global_rank() + 1) / (fabric.world_size() + 1));
}

/// root 3 { a 8, b 15, c 24 }, in the order that the call says.
struct ShuffledImpl : RowImpl {
  at::Tensor forward(at::Tensor x, std::string const& order) {
    x = x * w.mean();
    for (char const which : order) x = (which == 'a' ? a : which == 'b' ? b : c)(x);
    return x;
  }
};
TORCH_MODULE(Shuffled);

/// Counts the warnings that speak of a recorded order.
struct OrderWarnings final : c10::WarningHandler {
  void process(c10::Warning const& warning) override {
    count += contains(warning.msg(), "nothing was gathered ahead for it");
  }
  int count = 0;
};

}  // namespace

TEST_CASE("units in another order, some of them left out or twice: right, and said once", "[shard]") {
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
      OrderWarnings warnings;
      c10::WarningUtils::WarningHandlerGuard const guard(&warnings);
      auto [model, optimizer] = fabric.setup(Shuffled(), weft::SGD{.lr = 0.0});
      for (std::string const order : {"abc", "abc", "cba", "cba", "ab", "abc", "b", "", "cabba", "abc", "c"}) {
        fabric.backward(model(input(fabric), order).sum());
        auto const sums = gradient_sums(model);
        expect(all_are({sums[0]}, 1), "the root's gradient after " + order);
        for (int unit = 0; unit < 3; ++unit) {
          auto const times = std::count(order.begin(), order.end(), "abc"[unit]);
          expect(times == 0 ? std::isnan(sums[1 + unit]) : all_are({sums[1 + unit]}, static_cast<double>(times)),
                 "a gradient for each use in " + order + ": " + text_of(sums));
        }
        optimizer.step();
        optimizer.zero_grad();
        {
          at::NoGradGuard const no_grad;
          model(input(fabric), "bca");
        }
      }
      // One bucket has no order, and what is always whole is not gathered.
      int const expected = fabric.config().bucket_bytes == 1 && fabric.config().sharding.shard_parameters ? 1 : 0;
      expect(warnings.count == expected, std::to_string(expected) + " warnings, not " + std::to_string(warnings.count));
      return 1;
    }));
  });
}

TEST_CASE("units that run again and again, as in generating a text, follow the recorded order anew each time",
          "[shard]") {
  using Strategy = FSDP<FullShard, Pieces, Bucket<1>>;
  CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
    OrderWarnings warnings;
    c10::WarningUtils::WarningHandlerGuard const guard(&warnings);
    auto model = fabric.setup(Shuffled());
    at::NoGradGuard const no_grad;
    auto const once = model(at::ones({1}), "abc");
    fabric.recorder().start();
    expect(model(at::ones({1}), "abcabcabc").equal(once), "the same values");
    expect(fabric.recorder().stop().size() == 1 + 3 * 3, "a gather for each unit and turn");
    expect(warnings.count == 0, "no word of another order");
    return 1;
  }));
}

TEST_CASE("a unit whose output is not in the loss, and values after the step are the new ones", "[shard]") {
  struct TwoHeadsImpl : RowImpl {
    std::vector<at::Tensor> forward(at::Tensor const& x) {
      auto const h = a(x * w.mean());
      return {b(h), c(h)};
    }
  };
  auto const run = []<class Strategy>(int world, std::type_identity<Strategy>) {
    return on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
      auto [model, optimizer] = fabric.setup(std::make_shared<TwoHeadsImpl>(), weft::SGD{.lr = 0.1});
      std::vector<std::vector<at::Tensor>> alive;
      for (int step = 0; step < 6; ++step) {
        auto outputs = model(input(fabric));
        fabric.backward(outputs[step % 3 == 0 ? 1 : 0].sum() + (step % 3 == 2 ? outputs[1].sum() : at::zeros({})));
        optimizer.step();
        optimizer.zero_grad();
        alive.push_back(std::move(outputs));  // graphs that nobody runs
      }
      return whole_weights(fabric, model);
    });
  };
  auto const reference = run(1, std::type_identity<weft::SingleDevice>());
  for_each_sharding([&]<class Strategy>(std::type_identity<Strategy> strategy) {
    auto const weights = run(2, strategy);
    for (std::size_t i = 0; i < reference.size(); ++i) CHECK(relative_difference(weights[i], reference[i]) < 1e-5);
  });
}

TEST_CASE("evaluation under no-grad between steps, and between forward and backward, changes nothing", "[shard]") {
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
      auto [model, optimizer] = fabric.setup(Row(), weft::SGD{.lr = 0.0});
      auto const evaluate = [&, &model = model] {
        at::NoGradGuard const no_grad;
        model.eval();
        expect(std::abs(model(at::ones({1})).template item<double>() - 1) < 1e-6, "the value");
        model.train();
      };
      evaluate();
      for (int step = 0; step < 3; ++step) {
        auto const loss = model(input(fabric)).sum();
        evaluate();
        fabric.backward(loss);
        evaluate();
        auto const sums = gradient_sums(model);
        expect(all_are(sums, 1), "gradients: " + text_of(sums));
        optimizer.step();
        optimizer.zero_grad();
        c10::InferenceMode const inference;
        expect(std::abs(model(at::ones({1})).template item<double>() - 1) < 1e-6, "the value");
      }
      return 1;
    }));
  });
}

TEST_CASE("a graph that is kept longer than its model is refused in backward, and harmless before", "[shard]") {
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
      auto const loss = [&] {
        auto model = fabric.setup(Row());
        fabric.backward(model(input(fabric)).sum());
        return model(input(fabric)).sum();
      }();
      auto const message = message_of([&] { fabric.backward(loss); });
      expect(contains(message, "destroyed") || !fabric.config().sharding.shard_parameters,
             "a refusal, not: " + message);
      return 1;
    }));
  });
}

TEST_CASE("NUM-33: a unit called past its wrapped model is refused where it is entered; call<&M::method> is right",
          "[shard][known]") {
  struct EncoderImpl : RowImpl {
    at::Tensor encode(at::Tensor const& x) { return forward(x) * 2; }
  };
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
      auto model = fabric.setup(std::make_shared<EncoderImpl>());
      expect(contains(message_of([&] { model->forward(input(fabric)); }), "model(...)"), "a refusal");
      expect(contains(message_of([&] { model->a(input(fabric)); }), "model(...)"), "a refusal");
      fabric.backward(model.template call<&EncoderImpl::encode>(input(fabric)).sum());
      auto const sums = gradient_sums(model);
      expect(all_are(sums, 2), "gradients: " + text_of(sums));
      return 1;
    }));
  });
}

TEST_CASE("an L2 term inside of forward is right", "[shard]") {
  struct RegularisedImpl : torch::nn::Module {
    RegularisedImpl() { row = register_module("row", Row()); }
    at::Tensor forward(at::Tensor const& x) { return row->forward(x).sum() + row->w.pow(2).sum(); }
    Row row = nullptr;
  };
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
      auto model = fabric.setup(std::make_shared<RegularisedImpl>());
      fabric.backward(model(input(fabric)));
      auto const sums = gradient_sums(model);
      expect(all_are({sums[0] - 6, sums[1], sums[2], sums[3]}, 1.0), "the term's gradient besides: " + text_of(sums));
      return 1;
    }));
  });
}

TEST_CASE(
    "NUM-30, NUM-31: buffers are each rank's own after setup; two forwards of a BatchNorm model before one backward",
    "[shard][known]") {
  auto const run = []<class Strategy>(int world, std::type_identity<Strategy>) {
    return on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
      fabric.seed_everything(5);
      auto model = fabric.setup(
          torch::nn::Sequential(weft::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), weft::nn::Linear(4, 1)));
      auto generator = at::detail::createCPUGenerator(9);
      auto const x = at::randn({6, 3}, generator), y = at::randn({6, 3}, generator);
      auto& buffer = (*model)[1]->template as<torch::nn::BatchNorm1d>()->running_mean;
      fabric.backward(
          (model(x) + model(y)).sum());  // the same data on all ranks: the average is one process's gradient
      auto gradients = unsharded_gradients(model);
      buffer.fill_(fabric.global_rank());
      {
        at::NoGradGuard const no_grad;
        model.eval();
        model(x);
      }
      expect(buffer.eq(fabric.global_rank()).all().template item<bool>(), "this rank's own");
      return gradients;
    });
  };
  auto const one = run(1, std::type_identity<weft::SingleDevice>());
  for_each_strategy<FSDP<FullShard, weft::WrapPolicy<weft::nn::Linear>>,
                    FSDP<NoShard, weft::WrapPolicy<weft::nn::Linear>>>(
      [&]<class Strategy>(std::type_identity<Strategy> strategy) {
        auto const two = run(2, strategy);
        for (std::size_t i = 0; i < one.size(); ++i)
          CHECK((two[i] - one[i]).abs().max().template item<double>() < 1e-5);
      });
}

TEST_CASE("an output that only one rank keeps changes nothing: not what is gathered, nor when a unit is reduced",
          "[shard]") {
  for_each_strategy<FSDP<FullShard, Pieces, Bucket<1>>, FSDP<FullShard, Pieces>,
                    FSDP<weft::ShardGradOp, Pieces, Bucket<1>>>([]<class Strategy>(std::type_identity<Strategy>) {
    CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
      auto [model, optimizer] = fabric.setup(Row(), weft::SGD{.lr = 0.0});
      std::vector<at::Tensor> kept;
      auto const forward = [&, &model = model] {
        auto out = model(at::ones({1}));
        if (fabric.global_rank() == 0) kept.push_back(out);
        return out;
      };
      for (int i = 0; i < 3; ++i)
        expect(forward().template item<double>() == 1, "values after " + std::to_string(i) + " kept outputs");
      for (int i = 0; i < 2; ++i) {
        fabric.backward(forward().sum());
        auto const sums = gradient_sums(model);
        expect(all_are(sums, 1), text_of(sums));
        optimizer.step();
        optimizer.zero_grad();
        for (auto const& weight : whole_weights(fabric, model))
          expect(weight.eq(1).all().template item<bool>(), "whole weights");
      }
      fabric.backward(forward().sum());
      kept.clear();
      expect(forward().template item<double>() == 1, "and after they are gone");
      return 1;
    }));
  });
}
