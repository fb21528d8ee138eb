#include <unistd.h>

#include <filesystem>

#include <weft/checkpoints/safetensors.hpp>

#include "models.hpp"
#include "same.hpp"

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::Bf16, weft::Bf16Mixed, weft::Bucket, weft::Fp16, weft::Fp32, weft::Fp64, weft::FSDP, weft::MixedPrecision,
    weft::Number;

namespace {

/// x * w, element by element: the gradient of w is what the test says.
struct GivenImpl : torch::nn::Module {
  explicit GivenImpl(int64_t numel) { w = register_parameter("w", torch::ones({numel})); }
  at::Tensor forward(at::Tensor const& x) {
    seen = w.scalar_type();
    return w * x;
  }
  at::Tensor w;
  at::ScalarType seen = at::kLong;  // by the last forward
};
WEFT_MODULE(Given);

/// root { a 5, b 3 }, given what the gradients are to be.
struct GivensImpl : torch::nn::Module {
  GivensImpl() {
    a = register_module("a", Given(5));
    b = register_module("b", Given(3));
  }
  at::Tensor forward(at::Tensor const& of_a, at::Tensor const& of_b) { return at::cat({a(of_a), b(of_b)}); }
  at::Tensor forward_a(at::Tensor const& of_a) { return a(of_a); }
  Given a = nullptr, b = nullptr;
};
TORCH_MODULE(Givens);

/// A table and a count beside a layer, and a layer that keeps statistics.
struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    linear = register_module("linear", torch::nn::Linear(6, 3));
    table = register_buffer("table", at::full({3}, 1.0 / 3));
    calls = register_buffer("calls", at::zeros({}, at::kLong));
    mask = register_buffer("mask", at::ones({3}, at::kBool));
  }
  at::Tensor forward(at::Tensor const& x) {
    calls.add_(1);
    auto const y = linear(norm(x)) * table * mask;
    seen = c10::str(x.scalar_type(), " ", norm->weight.scalar_type(), " ", norm->running_mean.scalar_type(), " ",
                    linear->weight.scalar_type(), " ", table.scalar_type(), " ", y.scalar_type());
    return y;
  }
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Linear linear = nullptr;
  at::Tensor table, calls, mask;
  std::string seen;
};
WEFT_MODULE(Normed);
struct OfNormedImpl : torch::nn::Module {
  OfNormedImpl() { inner = register_module("inner", Normed()); }
  at::Tensor forward(at::Tensor const& x) { return inner(x); }
  Normed inner = nullptr;
};
TORCH_MODULE(OfNormed);

template <class Sharding, class... Options>
using Units = FSDP<Sharding, weft::WrapIf<[](torch::nn::Module& module, std::string const&) {
                     return dynamic_cast<BlockImpl*>(&module) || dynamic_cast<GivenImpl*>(&module) ||
                            dynamic_cast<NormedImpl*>(&module);
                   }>,
                   Options...>;
using Full = Units<weft::FullShard, Bucket<1>>;
using IntoShards = Units<weft::FullShard, weft::AccumulateSharded>;
using GradOp = Units<weft::ShardGradOp>;
using Whole = Units<weft::NoShard>;
using Hybrid =
    Units<weft::HybridShard, Bucket<1>, weft::Mesh<weft::Axis<"replicate", weft::Infer>, weft::Axis<"shard", 2>>>;

using Cast = MixedPrecision<Bf16, Fp32, Fp32, Fp32>;
using LowBuffers = MixedPrecision<Bf16, Bf16, Bf16, Bf16>;
/// A precision of one's own: loss scaling where the CPU can show it.
struct Scaled {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Scaled";
  static constexpr weft::PrecisionConfig config{
      .computed = Number::bf16, .autocast = true, .loss_scaling = true, .scaling = {.initial_scale = 2}};
};

template <class Strategy, class Precision>
using Program = weft::Fabric<Strategy, Precision, weft::On<weft::Cpu>>;

template <class Strategy, class Precision, class Function>
auto launch(int world, Function function) {
  using Fabric = Program<Strategy, Precision>;
  auto outcome = Fabric::launch({.devices = world},
                                std::function<std::invoke_result_t<Function&, Fabric&>(Fabric&)>(std::move(function)));
  if (!outcome) FAIL(outcome.failures().front().message);
  return std::move(*outcome);
}

at::Tensor batch_of(Training const& t, int64_t micro) {
  return at::randn({t.batch, 5}, at::detail::createCPUGenerator(static_cast<uint64_t>(100 + micro)));
}

/// Losses, norms, final weights.
template <class Fabric, class Module, class Description>
Record trained_on(Fabric& fabric, Module module, Description const& description, Training const& t = {}) {
  auto [model, optimizer] = fabric.setup(std::move(module), description);
  Record record;
  int64_t const local = t.batch / fabric.world_size();
  for (int64_t step = 0; step < t.steps; ++step) {
    double sum = 0;
    for (int64_t micro = 0; micro < t.accumulate; ++micro) {
      auto const x = batch_of(t, step * t.accumulate + micro).narrow(0, fabric.global_rank() * local, local);
      auto const guard = fabric.no_backward_sync(model, micro + 1 < t.accumulate);
      auto const output = model(x);
      expect(output.scalar_type() == weft::precision::dtype_of(Fabric::composition::precision::config.output),
             "outputs as the config says");
      auto const loss = output.to(at::kFloat).pow(2).mean() / static_cast<double>(t.accumulate);
      fabric.backward(loss);
      sum += loss.template item<double>();
    }
    for (auto const& parameter : model.parameters())
      expect(parameter.grad().scalar_type() == parameter.scalar_type(), "gradients in the parameter's dtype");
    record.first.push_back(fabric.all_reduce(sum));
    record.first.push_back(fabric.clip_gradients(model, optimizer, weft::ClipNorm{t.clip}).template item<double>());
    optimizer.step();
    optimizer.zero_grad();
  }
  record.second = whole_weights(fabric, model);
  return record;
}
template <class Strategy, class Precision, class Description>
Record trained(int world, Description const& description, Training const& t = {}) {
  return launch<Strategy, Precision>(world, [&](Program<Strategy, Precision>& fabric) {
    fabric.seed_everything(1);
    return trained_on(fabric, Stack(), description, t);
  });
}

/// The same by hand, in one process: a copy in `computed` takes each rank's batch by itself, its gradients are averaged
/// in fp32 for weights in `kept`.
template <class Description>
Record by_hand(int world, at::ScalarType kept, at::ScalarType computed, Description const& description,
               Training const& t = {}) {
  torch::manual_seed(1);
  Stack masters;
  masters->to(kept);
  Stack copy;
  copy->to(computed);
  std::vector<weft::optim::NamedParameter> named;
  for (auto const& item : masters->named_parameters()) named.push_back({item.key(), item.value()});
  auto const optimizer = description.make(named);
  Record record;
  int64_t const local = t.batch / world;
  auto const weights = masters->parameters(), copies = copy->parameters();
  auto const wide = kept == at::kDouble ? at::kDouble : at::kFloat;
  for (int64_t step = 0; step < t.steps; ++step) {
    std::vector<at::Tensor> sums;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      at::NoGradGuard const no_grad;
      copies[i].copy_(weights[i]);
      sums.push_back(at::zeros(weights[i].sizes(), wide));
    }
    double sum = 0;
    for (int rank = 0; rank < world; ++rank) {
      std::vector<at::Tensor> of_rank(weights.size());
      for (int64_t micro = 0; micro < t.accumulate; ++micro) {
        auto const x = batch_of(t, step * t.accumulate + micro).narrow(0, rank * local, local);
        auto const loss = copy->forward(x.to(computed)).to(at::kFloat).pow(2).mean() /
                          static_cast<double>(t.accumulate);
        loss.backward();
        sum += loss.template item<double>() / world;
        for (std::size_t i = 0; i < weights.size(); ++i) {
          auto const grad = copies[i].grad().to(wide);
          of_rank[i] = micro == 0 ? grad.clone() : of_rank[i] + grad;
          copies[i].mutable_grad().reset();
        }
      }
      for (std::size_t i = 0; i < weights.size(); ++i) sums[i] += of_rank[i];
    }
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i].mutable_grad() = (sums[i] / world).to(kept);
    record.first.push_back(sum);
    record.first.push_back(weft::optim::clip(weights, weft::ClipNorm{t.clip}).template item<double>());
    optimizer->step();
  }
  for (auto const& weight : weights) record.second.push_back(weight.detach().clone());
  return record;
}

template <class Strategy, class Precision, class Description>
void compare(std::vector<int> const& worlds, Description const& description, Training const& t = {},
             double tolerance = 1e-6) {
  constexpr auto config = Precision::config;
  for (int const world : worlds) {
    INFO("world " << world);
    check_equal(trained<Strategy, Precision>(world, description, t),
                by_hand(world, weft::precision::dtype_of(config.stored), weft::precision::dtype_of(config.computed),
                        description, t),
                tolerance);
  }
}

/// The whole gradients of a and b.
template <class Model>
std::vector<std::vector<double>> gradients_of(Model const& model) {
  std::vector<std::vector<double>> result;
  for (auto const& gradient : unsharded_gradients(model)) {
    auto const values = gradient.defined() ? gradient.to(at::kDouble) : at::empty({0}, at::kDouble);
    result.emplace_back(values.template data_ptr<double>(), values.template data_ptr<double>() + values.numel());
  }
  return result;
}
bool all_are(std::vector<std::vector<double>> const& gradients, double value) {
  return std::all_of(gradients.begin(), gradients.end(), [&](auto const& gradient) {
    return !gradient.empty() && std::all_of(gradient.begin(), gradient.end(), [&](double v) { return v == value; });
  });
}

}  // namespace

TEST_CASE("a sharded run in mixed dtypes is what one process computes by hand, worlds 1 to 4", "[shard][precision]") {
  SECTION("full shard, autocast, AdamW") { compare<Full, Bf16Mixed>({1, 2, 3, 4}, weft::AdamW{.lr = 1e-2}); }
  SECTION("full shard, accumulating") {
    compare<Full, Bf16Mixed>({1, 2, 3}, weft::AdamW{.lr = 1e-2}, {.accumulate = 3});
  }
  SECTION("full shard, accumulating into shards") {
    compare<IntoShards, Cast>({2, 3}, weft::SGD{.lr = 0.1}, {.accumulate = 3}, 1e-4);
  }
  SECTION("shard-grad-op") {
    compare<GradOp, Cast>({1, 2, 3}, weft::SGD{.lr = 0.1, .momentum = 0.9}, {.accumulate = 2});
  }
  SECTION("no-shard") { compare<Whole, Bf16Mixed>({1, 2, 4}, weft::AdamW{.lr = 1e-2}, {.accumulate = 2}, 1e-4); }
  SECTION("hybrid") { compare<Hybrid, Cast>({2, 4}, weft::AdamW{.lr = 1e-2}, {}, 1e-4); }
}

TEST_CASE("a sharded run in true low or double precision is what one process computes by hand", "[shard][precision]") {
  // Without clipping, and by a factor that is a power of two: what is rounded once is rounded alike, wherever a vector
  // of the kernel ends.
  weft::SGD const exact{.lr = 0.125};
  SECTION("bf16") { compare<Full, Bf16>({1, 2, 3, 4}, exact, {.clip = 100}); }
  SECTION("bf16, accumulating: sums are kept in fp32") {
    compare<Full, Bf16>({2, 3}, exact, {.accumulate = 3, .clip = 100});
  }
  SECTION("fp64") { compare<Full, Fp64>({1, 2, 3}, weft::AdamW{.lr = 1e-2}); }
}

TEST_CASE("in mixed dtypes, units that are recomputed give the same bits", "[shard][precision]") {
  using Recomputed = weft::Fabric<Full, Bf16Mixed, weft::ActivationCheckpointing<Block>, weft::On<weft::Cpu>>;
  auto outcome = Recomputed::launch({.devices = 2}, [](Recomputed& fabric) {
    fabric.seed_everything(1);
    return trained_on(fabric, Stack(), weft::AdamW{.lr = 1e-2}, {.accumulate = 2});
  });
  if (!outcome) FAIL(outcome.failures().front().message);
  auto const [numbers, weights] = std::move(*outcome);
  auto const [plain_numbers, plain_weights] = trained<Full, Bf16Mixed>(2, weft::AdamW{.lr = 1e-2}, {.accumulate = 2});
  CHECK(numbers == plain_numbers);
  check_same(weights, plain_weights);
}

TEST_CASE("a module without memory gets the values that it is kept in, and buffers those of the config",
          "[shard][precision]") {
  auto const run = []<class Precision>(std::type_identity<Precision>) {
    for (int const world : {1, 2})
      CHECK(launch<Full, Precision>(world, [](Program<Full, Precision>& fabric) {
        auto const weights = [&](auto const& make) {
          fabric.seed_everything(5);
          auto const model = fabric.setup(make());
          auto tensors = whole_weights(fabric, model);
          for (auto const& buffer : model->buffers()) tensors.push_back(buffer.clone());
          return tensors;
        };
        auto const same = [](std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b) {
          for (std::size_t i = 0; i < a.size(); ++i)
            expect(a[i].scalar_type() == b[i].scalar_type() && a[i].equal(b[i]), "the same bits");
        };
        same(weights([&] { return fabric.template init_module<Stack>(); }), weights([] { return Stack(); }));
        same(weights([&] { return fabric.template init_module<OfNormed>(); }), weights([] { return OfNormed(); }));
        fabric.seed_everything(1);
        return trained_on(fabric, fabric.template init_module<Stack>(), weft::SGD{.lr = 0.125}, {.steps = 2})
                   .first.size() == 4;
      }));
  };
  run(std::type_identity<Bf16>());
  run(std::type_identity<Bf16Mixed>());
  run(std::type_identity<LowBuffers>());
}

TEST_CASE("in mixed dtypes: frozen, unfrozen and unused parameters, evaluation, errors on the way",
          "[shard][precision]") {
  auto const run = []<class Strategy, class Precision>(std::type_identity<Strategy>, std::type_identity<Precision>) {
    for (int const world : {1, 2})
      CHECK(launch<Strategy, Precision>(world, [](Program<Strategy, Precision>& fabric) {
        Givens module;
        module->b->w.requires_grad_(false);
        auto model = fabric.setup(module);
        auto optimizer = fabric.setup_optimizers(model, weft::SGD{.lr = 1.0});
        auto const of_a = at::full({5}, 0.5), of_b = at::full({3}, 0.25);
        fabric.backward(model(of_a, of_b).sum());
        expect(gradients_of(model) == std::vector<std::vector<double>>{std::vector<double>(5, 0.5), {}}, "frozen");
        optimizer.step();
        optimizer.zero_grad();
        model->b->w.requires_grad_(true);
        fabric.backward(model(of_a, of_b).sum());
        expect(gradients_of(model) ==
                   std::vector<std::vector<double>>{std::vector<double>(5, 0.5), std::vector<double>(3, 0.25)},
               "unfrozen");
        optimizer.zero_grad();
        model->b->w.mutable_grad().reset();
        fabric.backward(model.template call<&GivensImpl::forward_a>(of_a).sum());
        expect(gradients_of(model) == std::vector<std::vector<double>>{std::vector<double>(5, 0.5), {}}, "unused");
        auto const evaluate = [&] {
          at::NoGradGuard const no_grad;
          return model(of_a, of_b)[0].template item<double>();
        };
        expect(evaluate() == 0.25, "evaluated between backward and step");
        optimizer.step();
        optimizer.zero_grad();
        expect(evaluate() == 0, "the step is seen");
        expect(contains(message_of([&] { model(at::ones({4}), of_b); }), "size"), "forward throws");
        {
          auto loss = model(of_a, of_b).sum() * 1;
          loss.register_hook([](at::Tensor const& gradient) -> at::Tensor {
            throw std::runtime_error("from a hook");
            return gradient;
          });
          expect(contains(message_of([&] { fabric.backward(loss); }), "from a hook"), "backward throws");
        }
        for (auto const& parameter : model.parameters())
          expect(parameter.scalar_type() == at::kFloat && !parameter.grad().defined(), "as before");
        fabric.backward(model(of_a, of_b).sum());
        expect(gradients_of(model) ==
                   std::vector<std::vector<double>>{std::vector<double>(5, 0.5), std::vector<double>(3, 0.25)},
               "and on it goes");
        return true;
      }));
  };
  run(std::type_identity<Full>(), std::type_identity<Bf16Mixed>());
  run(std::type_identity<GradOp>(), std::type_identity<Cast>());
  run(std::type_identity<Whole>(), std::type_identity<Bf16Mixed>());
}

TEST_CASE("NUM-04: a reduction in fp16 neither overflows nor vanishes", "[shard][precision][known]") {
  using InFp16 = MixedPrecision<Fp16, Fp16, Fp32, Fp32>;
  CHECK(launch<Full, InFp16>(4, [](Program<Full, InFp16>& fabric) {
    auto model = fabric.setup(Givens());
    for (double const value : {30000.0, std::ldexp(1.0, -23)}) {
      fabric.backward(model(at::full({5}, value), at::full({3}, value)).sum());
      expect(all_are(gradients_of(model), value), "the average of equal gradients");
      for (auto const& parameter : model.parameters()) parameter.mutable_grad().reset();
    }
    return true;
  }));
}

TEST_CASE("in mixed dtypes: what forward sees, what the optimizer sees, what is summoned and saved",
          "[shard][precision]") {
  auto const run = []<class Strategy, class Precision>(std::type_identity<Strategy>, std::type_identity<Precision>,
                                                       int world) {
    auto const path = std::filesystem::temp_directory_path() / c10::str("weft-masters-", ::getpid(), ".safetensors");
    CHECK(launch<Strategy, Precision>(world, [&](Program<Strategy, Precision>& fabric) {
      constexpr auto kept = weft::precision::dtype_of(Precision::config.stored);
      constexpr auto output = weft::precision::dtype_of(Precision::config.output);
      double const third = kept == at::kFloat ? 1.0f / 3
                                              : at::scalar_tensor(1.0 / 3, at::kBFloat16).template item<double>();
      Givens module;
      {
        at::NoGradGuard const no_grad;
        module->a->w.fill_(1.0 / 3);
      }
      torch::optim::AdamW torchs(module->parameters(), 0.0);
      auto model = fabric.setup(module);
      auto optimizer = fabric.setup_optimizers(model, weft::AdamW{.lr = 0.0});
      bool const is_cut = fabric.config().sharding.shard_parameters && world > 1;
      for (int step = 0; step < 2; ++step) {
        auto const y = model(at::ones({5}), at::full({3}, 1.0 / 3));
        expect(y.scalar_type() == output, "the output");
        expect(std::abs(y[0].template item<double>() - 1.0 / 3) > 1e-4, "computed in bf16");
        expect(model->a->seen == at::kBFloat16 && model->b->seen == at::kBFloat16, "forward sees bf16");
        fabric.backward(y.to(at::kFloat).sum());
        for (auto const& parameter : model.parameters()) {
          expect(parameter.scalar_type() == kept && parameter.grad().scalar_type() == kept, "kept as the config says");
          expect(parameter.sizes() == parameter.grad().sizes(), "a gradient like the parameter");
        }
        expect(std::abs(model->a->w.sum().template item<double>() - third * static_cast<double>(model->a->w.numel())) <
                   (kept == at::kFloat ? 1e-6 : 0.02),
               "masters at rest");
        optimizer.step();
        torchs.step();
        optimizer.zero_grad();
      }
      for (auto const& [key, state] : torchs.state())
        expect(static_cast<torch::optim::AdamWParamState const&>(*state).exp_avg().scalar_type() == kept,
               "torch's own states");
      {
        auto const whole = fabric.summon_full_params(model, /*writeback=*/true);
        for (auto const& parameter : model.parameters())
          expect(parameter.scalar_type() == kept, "masters are summoned");
        expect(model->a->w.sizes() == at::IntArrayRef({5}) && model->a->w[4].template item<double>() == third,
               "to the bit");
        at::NoGradGuard const no_grad;
        model->a->w.add_(1);
      }
      fabric.save_weights(path, model);
      if (fabric.is_global_zero()) {
        auto const saved = weft::checkpoints::load_safetensors(path.string());
        expect(saved.at(0).first == "a.w" && saved.at(0).second.scalar_type() == kept, "masters are saved");
        expect(
            std::abs(saved.at(0).second[2].template item<double>() - (1 + third)) < (kept == at::kFloat ? 1e-6 : 0.01),
            "what was written");
      }
      {
        at::NoGradGuard const no_grad;
        for (auto& parameter : model.parameters()) parameter.zero_();
      }
      fabric.load_weights(path, model);
      auto const weights = whole_weights(fabric, model);
      expect(std::abs(weights[0][0].template item<double>() - (1 + third)) < (kept == at::kFloat ? 1e-6 : 0.01) &&
                 weights[1].eq(1).all().template item<bool>(),
             "loaded");
      expect(is_cut == (model->a->w.numel() < 5), "parts at rest");
      expect(contains(message_of([&] {
                        fabric.backward(model(at::ones({5}), at::ones({3})).sum() + model->a->w.square().sum());
                      }),
                      is_cut               ? "while it was a shard"
                      : kept == at::kFloat ? "while it was at rest"
                                           : "nothing was thrown"),
             "a use of what is at rest");
      return true;
    }));
    std::filesystem::remove(path);
  };
  auto const is = []<class T>(std::type_identity<T> type) { return type; };
  for (int const world : {1, 2, 3}) {
    run(is(std::type_identity<Full>()), is(std::type_identity<Bf16Mixed>()), world);
    run(is(std::type_identity<Full>()), is(std::type_identity<LowBuffers>()), world);
    run(is(std::type_identity<Whole>()), is(std::type_identity<Bf16Mixed>()), world);
    run(is(std::type_identity<Full>()), is(std::type_identity<Bf16>()), world);
  }
}

TEST_CASE(
    "NUM-05 and NUM-09 in mixed dtypes: every pattern of synchronized passes, with and without a unit, zeroed or not",
    "[shard][precision][known]") {
  auto const run = []<class Strategy, class Precision>(std::type_identity<Strategy>, std::type_identity<Precision>,
                                                       std::vector<int> const& worlds) {
    for (int const world : worlds)
      CHECK(launch<Strategy, Precision>(world, [](Program<Strategy, Precision>& fabric) {
        auto model = fabric.setup(Givens());
        auto optimizer = fabric.setup_optimizers(model, weft::SGD{.lr = 0.0});
        auto const pass = [&](double factor, bool sync, bool both = true) {
          auto const guard = fabric.no_backward_sync(model, !sync);
          auto const of_a = at::full({5}, factor * (fabric.global_rank() + 1)),
                     of_b = at::full({3}, factor * (fabric.global_rank() + 1));
          fabric.backward(both ? model(of_a, of_b).sum() : model.template call<&GivensImpl::forward_a>(of_a).sum());
        };
        double const mean = (fabric.world_size() + 1) / 2.0;
        for (auto const& pattern :
             std::vector<std::vector<int>>{{1, 0, 0, 1}, {0, 1, 0, 1}, {1, 1, 1, 1}, {0, 0, 0, 1}}) {
          double factor = 1;
          for (int const sync : pattern) {
            pass(factor, sync);
            factor *= 16;  // 1 + 16 + 256 + 4096: more bits than bf16 has
          }
          expect(all_are(gradients_of(model), 4369 * mean), "each pass counts, in fp32");
          optimizer.zero_grad();
        }
        pass(1, false, false);  // a alone, then both
        pass(256, true);
        expect(gradients_of(model) == std::vector<std::vector<double>>{std::vector<double>(5, 257 * mean),
                                                                       std::vector<double>(3, 256 * mean)},
               "born in different passes");
        for (bool const to_none : {true, false}) {
          pass(8, false);
          optimizer.zero_grad(to_none);
          pass(4, true);
          expect(all_are(gradients_of(model), 4 * mean), "zeroed between passes");
          optimizer.zero_grad();
        }
        return true;
      }));
  };
  run(std::type_identity<Full>(), std::type_identity<Bf16Mixed>(), {1, 2, 3});
  run(std::type_identity<IntoShards>(), std::type_identity<Cast>(), {1, 2, 3});
  run(std::type_identity<GradOp>(), std::type_identity<Cast>(), {1, 3});
  run(std::type_identity<Whole>(), std::type_identity<Bf16Mixed>(), {1, 3});
  run(std::type_identity<Hybrid>(), std::type_identity<Cast>(), {2, 4});
}

TEST_CASE("NUM-14: clipping by norm and value does not depend on the precision; the norm is the whole model's",
          "[shard][precision][known]") {
  auto const run = []<class Precision>(std::type_identity<Precision>) {
    for (int const world : {1, 2, 3})
      CHECK(launch<Full, Precision>(world, [](Program<Full, Precision>& fabric) {
        auto model = fabric.setup(Givens());
        auto optimizer = fabric.setup_optimizers(model, weft::SGD{.lr = 1.0});
        auto const backward = [&] {
          fabric.backward(
              model(at::tensor({30.f, 0.f, 0.f, 0.f, 0.f}), at::tensor({0.f, 0.f, -40.f})).to(at::kFloat).sum());
        };
        backward();
        expect(
            std::abs(fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0}).template item<double>() - 50) < 1e-4,
            "the norm");
        auto const gradients = gradients_of(model);
        expect(std::abs(gradients[0][0] - 0.6) < 3e-3 && std::abs(gradients[1][2] + 0.8) < 3e-3, "of norm 1");
        optimizer.zero_grad();
        backward();
        fabric.clip_gradients(model, optimizer, weft::ClipValue{0.5});
        expect(gradients_of(model) == std::vector<std::vector<double>>{{0.5, 0, 0, 0, 0}, {0, 0, -0.5}}, "by value");
        return true;
      }));
  };
  run(std::type_identity<Bf16>());
  run(std::type_identity<Bf16Mixed>());
  run(std::type_identity<LowBuffers>());
  run(std::type_identity<Scaled>());
}

TEST_CASE(
    "NUM-13 and NUM-15: a scaled loss over shards: clipped without its scale; inf in one rank's part alone, and all "
    "ranks skip together",
    "[shard][precision][known]") {
  for (int const world : {1, 2, 4})
    CHECK(launch<Full, Scaled>(world, [](Program<Full, Scaled>& fabric) {
      auto model = fabric.setup(Givens());
      auto optimizer = fabric.setup_optimizers(model, weft::SGD{.lr = 1.0});
      float const inf = std::numeric_limits<float>::infinity();
      auto const of_b = at::full({3}, 0.25);
      fabric.backward(model(at::tensor({inf, 1.f, 1.f, 1.f, 1.f}), of_b).sum());
      bool const stepped = optimizer.step();
      expect(!stepped && fabric.loss_scaler().scale() == 1.0, "skipped, and backed off");
      for (auto const& weight : whole_weights(fabric, model))
        expect(weight.eq(1).all().item<bool>(), "weights as they were");
      optimizer.zero_grad();
      fabric.backward(model(at::full({5}, 0.25), of_b).sum());
      expect(std::abs(fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0}).item<double>() -
                      0.25 * std::sqrt(8.0)) < 1e-6,
             "without the scale");
      expect(optimizer.step(), "stepped");
      for (auto const& weight : whole_weights(fabric, model))
        expect(weight.eq(0.75).all().item<bool>(), "by the gradient itself");
      return true;
    }));
}

namespace {

/// Sums are other numbers than what parameters show of them.
struct ScaledLowSums {
  using category = weft::category::precision;
  static constexpr std::string_view name = "ScaledLowSums";
  static constexpr weft::PrecisionConfig config{.computed = Number::bf16,
                                                .reduced = Number::bf16,
                                                .autocast = true,
                                                .loss_scaling = true,
                                                .scaling = {.initial_scale = 2}};
};

}  // namespace

TEST_CASE("a sum that waits to be reduced goes along when another optimizer's overflow changes the scale",
          "[shard][precision]") {
  auto const run = []<class Strategy, class Precision>(std::type_identity<Strategy>, std::type_identity<Precision>) {
    for (auto const& pattern : std::vector<std::vector<bool>>{{false, false, true}, {true, false, true}})
      CHECK(launch<Strategy, Precision>(2, [pattern](Program<Strategy, Precision>& fabric) {
        auto [model, optimizer] = fabric.setup(Givens(), weft::SGD{.lr = 1.0});
        auto [other, others] = fabric.setup(Givens(), weft::SGD{.lr = 1.0});
        auto const given = [&](double value) { return std::pair(at::full({5}, value), at::full({3}, value)); };
        for (bool const sync : pattern) {
          auto const [of_a, of_b] = given(0.125 * (fabric.global_rank() + 1));
          {
            auto const guard = fabric.no_backward_sync(model, !sync);
            fabric.backward(model(of_a, of_b).sum());
          }
          auto const [inf_a, inf_b] = given(std::numeric_limits<double>::infinity());
          fabric.backward(other(inf_a, inf_b).sum());
          expect(!others.step(), "an overflow");
          others.zero_grad();
        }
        expect(fabric.loss_scaler().scale() == 0.25 && optimizer.step(), "three times half of it");
        for (auto const& weight : whole_weights(fabric, model))
          expect(weight.eq(1 - 3 * 0.1875).all().template item<bool>(),
                 c10::str("the average of what was summed: ", weight));
        return true;
      }));
  };
  run(std::type_identity<Full>(), std::type_identity<Scaled>());
  run(std::type_identity<Whole>(), std::type_identity<Scaled>());
  run(std::type_identity<IntoShards>(), std::type_identity<Scaled>());
  run(std::type_identity<Full>(), std::type_identity<ScaledLowSums>());
}

TEST_CASE("a unit that was gathered ahead and did not run is a shard again, whatever graphs wait for it",
          "[shard][precision]") {
  using Kept = Units<weft::ShardGradOp, Bucket<1>>;
  CHECK(launch<Kept, Cast>(2, [](Program<Kept, Cast>& fabric) {
    auto model = fabric.setup(Givens());
    auto const of_a = at::full({5}, 0.5), of_b = at::full({3}, 0.25);
    auto const waits = model(of_a, of_b);  // its graph keeps b for backward
    auto const other = model.template call<&GivensImpl::forward_a>(of_a);
    {
      auto const whole = fabric.summon_full_params(model, /*writeback=*/true);
      expect(model->b->w.scalar_type() == at::kFloat && model->b->w.numel() == 3, "masters are summoned");
    }
    {
      at::NoGradGuard const no_grad;
      model.template call<&GivensImpl::forward_a>(of_a);
      for (auto& parameter : model.parameters()) parameter.fill_(2);
      expect(model(of_a, of_b).equal(at::tensor({1.f, 1.f, 1.f, 1.f, 1.f, 0.5f, 0.5f, 0.5f})),
             "and the next forward has the values of then");
    }
    return true;
  }));
}

TEST_CASE("an optimizer of scaled losses that outlives its model holds nothing of it", "[shard][precision]") {
  CHECK(launch<Full, Scaled>(2, [](Program<Full, Scaled>& fabric) {
    std::weak_ptr<weft::model::Engine> engine;
    auto const optimizer = [&] {
      auto model = fabric.setup(Givens());
      engine = model.state()->engine;
      return fabric.setup_optimizers(model, weft::SGD{.lr = 1.0});
    }();
    return engine.expired() && optimizer.parameters().size() == 2;
  }));
}

TEST_CASE("NUM-18: buffers keep their dtype, or have the one that the config says; counts and masks always keep theirs",
          "[shard][precision][known]") {
  auto const seen = []<class Precision>(std::type_identity<Precision>) {
    return launch<Full, Precision>(2, [](Program<Full, Precision>& fabric) {
      auto model = fabric.setup(OfNormed());
      auto const y = model(at::randn({4, 6}));
      auto& inner = *model->inner;
      expect(inner.calls.scalar_type() == at::kLong && inner.calls.template item<int64_t>() == 1 &&
                 inner.mask.scalar_type() == at::kBool,
             "counts and masks");
      expect(inner.norm->num_batches_tracked.scalar_type() == at::kLong, "the norm's own count");
      bool const has_bits = inner.table.equal(at::full({3}, 1.0 / 3));
      return c10::str(inner.seen, " | ", y.scalar_type(), has_bits ? " same bits" : "");
    });
  };
  CHECK(seen(std::type_identity<Bf16Mixed>()) == "BFloat16 Float Float BFloat16 Float Float | Float same bits");
  CHECK(seen(std::type_identity<Bf16>()) == "BFloat16 Float Float BFloat16 Float Float | Float same bits");
  CHECK(seen(std::type_identity<LowBuffers>()) == "BFloat16 Float Float BFloat16 BFloat16 BFloat16 | BFloat16");
}

TEST_CASE("NUM-19: statistics of a normalization are kept in fp32: 100 steps of inputs of mean 1000",
          "[shard][precision][known]") {
  auto const relative_error = []<class Strategy, class Precision>(std::type_identity<Strategy>,
                                                                  std::type_identity<Precision>) {
    return launch<Strategy, Precision>(2, [](Program<Strategy, Precision>& fabric) {
      auto [model, optimizer] = fabric.setup(OfNormed(), weft::SGD{.lr = 1e-3});
      torch::nn::BatchNorm1d reference(6);
      fabric.seed_everything(static_cast<std::uint64_t>(3 + fabric.global_rank()));
      for (int step = 0; step < 100; ++step) {
        auto const x = at::randn({64, 6}) * 20 + 1000;
        fabric.backward(model(x).to(at::kFloat).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
        reference(x);
      }
      expect(model->inner->norm->running_mean.scalar_type() == at::kFloat, "in fp32");
      expect(relative_difference(model->inner->norm->running_var, reference->running_var) < 0.02, "the variance");
      return relative_difference(model->inner->norm->running_mean, reference->running_mean);
    });
  };
  CHECK(relative_error(std::type_identity<Full>(), std::type_identity<Bf16Mixed>()) < 1e-3);
  CHECK(relative_error(std::type_identity<Full>(), std::type_identity<LowBuffers>()) < 1e-3);
  CHECK(relative_error(std::type_identity<Whole>(), std::type_identity<Bf16Mixed>()) < 1e-3);
}
