#include "pieces.hpp"

using namespace test;
using weft::FSDP, weft::FullShard, weft::ShardGradOp, weft::NoShard, weft::Bucket, weft::WrapPolicy;

namespace {

template <class Wrap, class Function>
void for_each_sharding(Function const& f) {
  for_each_strategy<FSDP<FullShard, Wrap, Bucket<1>>, FSDP<FullShard, Wrap>, FSDP<ShardGradOp, Wrap, Bucket<1>>,
                    FSDP<NoShard, Wrap>>(f);
}

using Nested = WrapPolicy<Outer, Piece>;

/// Rank r has (r + 1) times as much as rank 0; all ranks average to 1.
template <class Run>
at::Tensor input(Run& fabric) {
  return at::full({1}, 2.0 * (fabric.global_rank() + 1) / (fabric.world_size() + 1));
}

/// What `script(fabric, model)` does to a model, as whole weights; under each sharding like in one process.
template <class Wrap, class Module, class Script>
void like_one_process(Module const& make, Script const& script, std::vector<int> const& worlds = {1, 2, 3}) {
  auto const run = [&]<class Strategy>(int world, std::type_identity<Strategy>) {
    return on_ranks<Strategy>(world, [&](Run<Strategy>& fabric) {
      fabric.seed_everything(1);
      auto model = fabric.setup(make());
      script(fabric, model);
      return whole_weights(fabric, model);
    });
  };
  auto const reference = run(1, std::type_identity<weft::SingleDevice>());
  for_each_sharding<Wrap>([&]<class Strategy>(std::type_identity<Strategy> strategy) {
    for (int world : worlds) {
      INFO("world " << world << ", " << Strategy::sharding::name);
      auto const weights = run(world, strategy);
      REQUIRE(weights.size() == reference.size());
      for (std::size_t i = 0; i < weights.size(); ++i) {
        CHECK(weights[i].sizes() == reference[i].sizes());
        CHECK(relative_difference(weights[i], reference[i]) < 1e-5);
      }
    }
  });
}

template <class Fabric, class Model, class Optimizer>
void train_steps(Fabric& fabric, Model& model, Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) {
    fabric.backward(model(input(fabric)).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
}

}  // namespace

TEST_CASE("NUM-23: frozen parameters of a unit stay as they are, with no gradient and no state", "[shard][known]") {
  like_one_process<Nested>(
      [] { return NestedRow(); },
      [](auto& fabric, auto& model) {
        auto optimizer = fabric.setup_optimizers(model, weft::AdamW{.lr = 0.1, .weight_decay = 0.1});
        train_steps(fabric, model, optimizer, 3);
        expect(optimizer->state().size() == 3, "state for what is trained");
        fabric.backward(model(input(fabric)).sum());
        expect(!model->outer->frozen.grad().defined() && !model->last->w.grad().defined(), "no gradient");
        auto const whole = fabric.summon_full_params(model);
        expect(model->outer->frozen.equal(at::ones({3})) && model->last->w.equal(at::ones({24})), "as they were");
      });
}

TEST_CASE("NUM-23: parameters frozen after setup stay as they are", "[shard][known]") {
  like_one_process<Pieces>([] { return Row(); },
                           [](auto& fabric, auto& model) {
                             auto optimizer = fabric.setup_optimizers(model, weft::SGD{.lr = 0.1, .weight_decay = 0.1});
                             train_steps(fabric, model, optimizer, 2);
                             model->a->w.requires_grad_(false);
                             train_steps(fabric, model, optimizer, 2);
                             fabric.backward(model(input(fabric)).sum());
                             expect(!model->a->w.grad().defined() && model->b->w.grad().defined(),
                                    "the frozen one has no gradient");
                             optimizer.zero_grad();
                             model->a->w.requires_grad_(true);
                             train_steps(fabric, model, optimizer, 2);
                           });
}

TEST_CASE("parameters frozen at setup train once they are unfrozen", "[shard]") {
  like_one_process<Nested>([] { return NestedRow(); },
                           [](auto& fabric, auto& model) {
                             torch::optim::SGD all(model.parameters(), torch::optim::SGDOptions(0.1));
                             auto optimizer = fabric.setup_optimizers(model, all);
                             train_steps(fabric, model, optimizer, 2);
                             model->outer->frozen.requires_grad_(true);
                             train_steps(fabric, model, optimizer, 2);
                             model->last->w.requires_grad_(true);
                             {
                               auto const guard = fabric.no_backward_sync(model);
                               fabric.backward(model(input(fabric)).sum());
                             }
                             train_steps(fabric, model, optimizer, 2);
                             model->outer->frozen.requires_grad_(false);
                             train_steps(fabric, model, optimizer, 2);
                           });
}

namespace {

struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    a = register_parameter("a", torch::ones({3}));
    b = register_parameter("b", torch::ones({5}));
  }
  at::Tensor forward(at::Tensor const& x, bool use_b) { return use_b ? x * a.mean() * b.mean() : x * a.mean(); }
  at::Tensor a, b;
};
WEFT_MODULE(Branches);
/// One parameter unused in a unit, one in the root, and a unit that is not called.
struct UnusedImpl : torch::nn::Module {
  UnusedImpl() {
    branches = register_module("branches", Branches());
    pool = register_module("pool", Piece(6));
    w = register_parameter("w", torch::ones({4}));
  }
  at::Tensor forward(at::Tensor const& x, bool all) {
    auto const h = branches(x, all);
    return all ? pool(h) * w.mean() : h;
  }
  Branches branches = nullptr;
  Piece pool = nullptr;
  at::Tensor w;
};
TORCH_MODULE(Unused);

}  // namespace

TEST_CASE("NUM-21: unused parameters have no gradient, do not move and are not remembered; units may be skipped",
          "[shard][known]") {
  auto const script = [](auto description, std::size_t states) {
    return [=](auto& fabric, auto& model) {
      auto optimizer = fabric.setup_optimizers(model, description);
      auto const step = [&](bool all) {
        fabric.backward(model(input(fabric), all).sum());
        for (auto const& unused : {model->branches->b, model->pool->w, model->w})
          expect(unused.grad().defined() == all, "a gradient where there is one");
        expect(model->branches->a.grad().defined(), "a gradient");
        optimizer.step();
        optimizer.zero_grad();
      };
      for (int i = 0; i < 3; ++i) step(false);
      expect(optimizer->state().size() == states, "state for what is used");
      {
        auto const whole = fabric.summon_full_params(model);
        expect(model->branches->b.equal(at::ones({5})) && model->pool->w.equal(at::ones({6})) &&
                   model->w.equal(at::ones({4})),
               "nothing moved");
      }
      for (bool all : {true, false, true}) step(all);
    };
  };
  using Wrap = WrapPolicy<Branches, Piece>;
  like_one_process<Wrap>([] { return Unused(); },
                         script(weft::SGD{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}, 1));
  like_one_process<Wrap>([] { return Unused(); }, script(weft::AdamW{.lr = 0.1}, 1));
}

TEST_CASE(
    "NUM-24: an optimizer made before setup, after setup or after a trial forward trains alike, weft's and torch's",
    "[shard][known]") {
  enum Moment { before, after, after_forward };
  for_each_sharding<WrapPolicy<Block>>([]<class Strategy>(std::type_identity<Strategy>) {
    auto const weights = [](int world, Moment moment, bool adam, bool torchs) {
      return on_ranks<Strategy>(world, [=](Run<Strategy>& fabric) {
        fabric.seed_everything(1);
        Stack module;
        auto const of = [&](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
          if (adam)
            return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                         torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
          return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                                     torch::optim::SGDOptions(0.1).momentum(0.9));
        };
        auto made = of(module->parameters());
        auto model = fabric.setup_module(module);
        if (moment == after_forward) {
          at::NoGradGuard const no_grad;
          model(at::ones({2, 5}));
        }
        if (moment != before) made = of(model.parameters());
        auto const run = [&](auto optimizer) {
          for (int step = 0; step < 4; ++step) {
            auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(10 * step + fabric.global_rank()));
            fabric.backward(model(at::randn({3, 5}, generator)).pow(2).mean());
            optimizer.step();
            optimizer.zero_grad();
          }
        };
        if (torchs)
          run(fabric.setup_optimizers(model, *made));
        else if (adam)
          run(fabric.setup_optimizers(model, weft::AdamW{.lr = 1e-2, .weight_decay = 0.1}));
        else
          run(fabric.setup_optimizers(model, weft::SGD{.lr = 0.1, .momentum = 0.9}));
        return whole_weights(fabric, model);
      });
    };
    for (bool adam : {false, true}) {
      auto const reference = weights(2, before, adam, true);
      for (auto const& other : {weights(2, after, adam, true), weights(2, after_forward, adam, true),
                                weights(2, after, adam, false), weights(2, after_forward, adam, false)})
        for (std::size_t i = 0; i < reference.size(); ++i) CHECK(relative_difference(other[i], reference[i]) < 1e-5);
    }
  });
}

TEST_CASE("NUM-25: groups keep their rates and order, decide by names and whole shapes, and leave out what is in none",
          "[shard][known]") {
  like_one_process<WrapPolicy<Block>>(
      [] { return Stack(2); },
      [](auto& fabric, auto& model) {
        std::map<std::string, std::vector<int64_t>> seen;
        weft::AdamW description{.lr = 1e-2, .weight_decay = 0.1};
        description.groups = {
            {.when = [](std::string_view name, at::Tensor const&) { return name.starts_with("out."); }, .skip = true},
            {.when =
                 [&seen](std::string_view name, at::Tensor const& parameter) {
                   seen[std::string(name)] = parameter.sizes().vec();
                   return parameter.dim() < 2;
                 },
             .lr = 1e-3,
             .weight_decay = 0.0}};
        auto optimizer = fabric.setup_optimizers(model, description);
        for (auto const& row : model.table().rows())
          if (!row.name.starts_with("out."))
            expect(seen.at(row.name) == row.global_shape, "the whole shape of " + row.name);
        std::vector<double> rates;
        for (auto const& group : optimizer->param_groups()) rates.push_back(group.options().get_lr());
        std::sort(rates.begin(), rates.end());
        expect(rates.size() >= 2 && rates.front() == 1e-3 && rates.back() == 1e-2, "the groups' rates");
        for (int step = 0; step < 3; ++step) {
          fabric.backward(model(at::full({2, 5}, 0.5)).pow(2).mean());
          optimizer.step();
          optimizer.zero_grad();
        }
      });
}

TEST_CASE("NUM-26: all ranks start from rank 0's parameters and buffers, whatever each drew", "[shard][known]") {
  for_each_sharding<WrapPolicy<weft::nn::Linear>>([]<class Strategy>(std::type_identity<Strategy>) {
    for (int world : {1, 2, 4}) {
      auto const [own, start] = on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
        torch::manual_seed(static_cast<uint64_t>(fabric.global_rank()));
        torch::nn::Sequential module(weft::nn::Linear(3, 5), torch::nn::BatchNorm1d(5), weft::nn::Linear(5, 2));
        module[1]->as<torch::nn::BatchNorm1d>()->running_mean.fill_(fabric.global_rank() + 1);
        auto const flat = [](auto const& parameters, auto const& buffers) {
          std::vector<at::Tensor> all;
          for (auto const& parameter : parameters) all.push_back(parameter.detach().flatten());
          for (auto const& buffer : buffers) all.push_back(buffer.flatten().to(at::kFloat));
          return at::cat(all);
        };
        auto const own = flat(module->parameters(), module->buffers());
        auto model = fabric.setup(module);
        return std::pair(own, fabric.all_gather(flat(whole_weights(fabric, model), model->buffers())));
      });
      for (int rank = 0; rank < world; ++rank) CHECK(start[rank].equal(own));
    }
  });
}
