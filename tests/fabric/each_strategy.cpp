// What has to be right under each strategy: several models and optimizers, schedulers, weights that are filtered.
#include "ranks.hpp"

#include <filesystem>

#include <unistd.h>

#include "same.hpp"

#include <weft/nn/linear.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Single = weft::SingleDevice;

struct LayerImpl : torch::nn::Module {
  LayerImpl(int64_t in, int64_t out) { linear = register_module("linear", torch::nn::Linear(in, out)); }
  at::Tensor forward(at::Tensor const& x) { return at::tanh(linear(x)); }
  torch::nn::Linear linear = nullptr;
};
WEFT_MODULE(Layer);

/// Odd sizes: padding everywhere.
struct NetImpl : torch::nn::Module {
  NetImpl(int64_t in, int64_t out) {
    first = register_module("first", Layer(in, 5));
    last = register_module("last", Layer(5, out));
    bias = register_parameter("bias", torch::zeros({out}));
  }
  at::Tensor forward(at::Tensor const& x) { return last(first(x)) + bias; }
  Layer first = nullptr, last = nullptr;
  at::Tensor bias;
};
TORCH_MODULE(Net);

using Sharded = weft::FSDP<weft::FullShard, weft::WrapPolicy<Layer>>;
using ShardedGradients = weft::FSDP<weft::ShardGradOp, weft::WrapPolicy<Layer>>;

/// This rank's rows of a batch of 12, which is the same at every world size.
template <class Run>
at::Tensor share(Run& fabric, int step, int64_t width) {
  auto const rows = at::arange(12 * width, at::kFloat).reshape({12, width}).mul(0.37 + step).sin();
  return rows.chunk(fabric.world_size())[fabric.global_rank()];
}

/// How the discriminator takes part in the generator's step.
enum class While { it_learns_too, it_keeps_gradients_local, it_is_frozen };

/// A GAN: two models, two optimizers, and a generator's loss that comes through both.
template <class Strategy>
std::vector<at::Tensor> train_gan(int world, While how) {
  return on_ranks<Strategy>(world, [how](Run<Strategy>& fabric) {
    fabric.seed_everything(3);
    auto [generator, of_generator] = fabric.setup(Net(3, 4), weft::Adam{.lr = 0.05});
    auto [discriminator, of_discriminator] = fabric.setup(Net(4, 1), weft::SGD{.lr = 0.1, .momentum = 0.9});
    for (int step = 0; step < 4; ++step) {
      auto const noise = share(fabric, step, 3), real = share(fabric, step + 7, 4);
      // The discriminator's turn. Nothing reaches the generator.
      auto const fake = generator(noise).detach();
      fabric.backward(at::softplus(-discriminator(real)).mean() + at::softplus(discriminator(fake)).mean());
      fabric.clip_gradients(discriminator, of_discriminator, weft::ClipNorm{0.5});
      of_discriminator.step();
      of_discriminator.zero_grad();
      // The generator's, whose loss comes through the discriminator.
      for (auto& parameter : discriminator.parameters()) parameter.requires_grad_(how != While::it_is_frozen);
      {
        auto const local = fabric.no_backward_sync(discriminator, how == While::it_keeps_gradients_local);
        fabric.backward(at::softplus(-discriminator(generator(noise))).mean());
      }
      for (auto& parameter : discriminator.parameters()) parameter.requires_grad_(true);
      fabric.clip_gradients(generator, of_generator, weft::ClipNorm{0.5});
      of_generator.step();
      of_generator.zero_grad();
      of_discriminator.zero_grad();
    }
    auto weights = whole_weights(fabric, generator);
    for (auto const& weight : whole_weights(fabric, discriminator)) weights.push_back(weight);
    return weights;
  });
}

void check_close(std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(relative_difference(a[i], b[i]) < 2e-5);
}

}  // namespace

TEST_CASE("a GAN of two models and two optimizers trains as in one process", "[fabric]") {
  for (auto const how : {While::it_learns_too, While::it_keeps_gradients_local, While::it_is_frozen}) {
    INFO("the discriminator, as the generator learns: " << static_cast<int>(how));
    auto const expected = train_gan<Single>(1, how);
    check_same(expected, train_gan<Single>(1, While::it_learns_too));  // three ways to write one algorithm
    for (int world : {1, 2, 3, 4}) {
      INFO("world " << world);
      check_close(train_gan<weft::DDP<>>(world, how), expected);
      check_close(train_gan<Sharded>(world, how), expected);
    }
    check_close(train_gan<ShardedGradients>(2, how), expected);
  }
}

namespace {

/// An encoder and a decoder with one optimizer, one norm, and one loss.
template <class Strategy>
std::pair<std::vector<at::Tensor>, std::vector<double>> train_pair(int world) {
  return on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
    fabric.seed_everything(4);
    auto encoder = fabric.setup_module(Net(4, 3));
    auto decoder = fabric.setup_module(Net(3, 4));
    auto const models = std::tie(encoder, decoder);
    std::string seen;
    weft::AdamW description{.lr = 0.02, .weight_decay = 0.1};
    description.groups = {{.when =
                               [&seen](std::string_view name, at::Tensor const& parameter) {
                                 seen += std::string(name) + " ";
                                 return parameter.dim() < 2;
                               },
                           .weight_decay = 0.0}};
    auto optimizer = fabric.setup_optimizers(models, description);
    expect(
        contains(seen, "0.first.linear.weight ") && contains(seen, "1.last.linear.bias ") && contains(seen, "1.bias "),
        seen);
    expect(optimizer->param_groups().size() == 2 && optimizer.parameters().size() == 10,
           "biases, and weights, by their whole shapes");
    std::vector<double> norms;
    for (int step = 0; step < 4; ++step) {
      auto const x = share(fabric, step, 4);
      fabric.backward((decoder(encoder(x)) - x).pow(2).mean() * 10);
      norms.push_back(
          fabric.clip_gradients(models, optimizer, weft::ClipNorm{.max_norm = 0.5}).template item<double>());
      fabric.clip_gradients(models, optimizer, weft::ClipValue{0.2});
      optimizer.step();
      optimizer.zero_grad();
    }
    expect(contains(message_of([&] { fabric.clip_gradients(encoder, optimizer, weft::ClipNorm{1.0}); }),
                    "does not belong to this model"),
           "one model is not all");
    auto weights = whole_weights(fabric, encoder);
    for (auto const& weight : whole_weights(fabric, decoder)) weights.push_back(weight);
    return std::pair(weights, norms);
  });
}

}  // namespace

TEST_CASE("one optimizer over two models: names, groups, and a norm over both, as in one process", "[fabric]") {
  auto const [expected, expected_norms] = train_pair<Single>(1);
  auto const check = [&, expected = &expected, norms = &expected_norms](auto const& run) {
    check_close(run.first, *expected);
    for (std::size_t i = 0; i < norms->size(); ++i) CHECK(std::abs(run.second[i] / (*norms)[i] - 1) < 1e-5);
  };
  for (int world : {1, 2, 3, 4}) {
    INFO("world " << world);
    check(train_pair<weft::DDP<>>(world));
    check(train_pair<Sharded>(world));
  }
}

TEST_CASE("several models: whoever goes first takes nobody along, and gradients stay apart", "[fabric]") {
  auto const check = []<class Strategy>(std::type_identity<Strategy>, int world = 2) {
    CHECK(on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
      fabric.seed_everything(6);
      auto kept = std::optional(fabric.setup(Net(3, 2), weft::SGD{.lr = 0.1}));
      auto first = std::optional(fabric.setup(Net(3, 2), weft::SGD{.lr = 0.1}));
      auto const x = share(fabric, 1, 3);
      auto const step = [&](auto& pair) {
        auto& [model, optimizer] = *pair;
        fabric.backward(model(x).sum());
        optimizer.step();
        optimizer.zero_grad();
      };
      step(kept);
      step(first);
      auto const& model_kept = std::get<0>(*kept);
      expect(model_kept->first->linear->weight.is_same(model_kept.table().find("first.linear.weight")->tensor) &&
                 model_kept->first->linear->weight.is_same(model_kept->parameters()[1]),
             "CPP-05: the member is the registered parameter, whatever became of its memory");
      for (auto const& parameter : model_kept.parameters())
        expect(!parameter.grad().defined(), "no gradient from the other's backward");
      auto pending = std::get<0>(*first)(x);  // a graph that nobody goes back through
      first.reset();
      step(kept);
      pending.reset();
      step(kept);
      auto only_optimizer = std::get<1>(*kept);
      auto model = std::get<0>(*kept);
      kept.reset();
      fabric.backward(model(x).sum());
      only_optimizer.step();
      return true;
    }));
  };
  check(std::type_identity<Single>(), 1);
  check(std::type_identity<weft::DDP<>>());
  check(std::type_identity<Sharded>());
}

namespace {

/// Warm-up and decay on one optimizer, a plateau on the other, and StepLR on a third.
template <class Strategy>
std::pair<std::vector<double>, std::vector<at::Tensor>> train_with_schedules(int world) {
  return on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
    fabric.seed_everything(8);
    auto [one, of_one] = fabric.setup(Net(3, 2), weft::SGD{.lr = 0.1});
    auto [two, of_two] = fabric.setup(Net(3, 2), weft::AdamW{.lr = 0.1});
    auto [three, of_three] = fabric.setup(Net(3, 2), weft::Adam{.lr = 0.1});
    weft::LambdaLR warm_up(of_one, [](int64_t step) { return step < 3 ? (step + 1) / 3.0 : 1.0 / (step - 1); });
    torch::optim::ReduceLROnPlateauScheduler plateau(of_two, torch::optim::ReduceLROnPlateauScheduler::min,
                                                     /*factor=*/0.5, /*patience=*/1, /*threshold=*/0.5);
    torch::optim::StepLR steps(of_three, /*step_size=*/2, /*gamma=*/0.1);
    std::vector<double> rates;
    for (int step = 0; step < 6; ++step) {
      auto const x = share(fabric, step, 3);
      auto const loss = one(x).pow(2).mean() + two(x).pow(2).mean() + three(x).pow(2).mean();
      fabric.backward(loss);
      for (auto* const optimizer : {&of_one->param_groups()[0].options(), &of_two->param_groups()[0].options(),
                                    &of_three->param_groups()[0].options()})
        rates.push_back(optimizer->get_lr());
      of_one.step(), of_two.step(), of_three.step();
      of_one.zero_grad(), of_two.zero_grad(), of_three.zero_grad();
      warm_up.step();
      plateau.step(fabric.all_reduce(loss.template item<float>()));  // of all ranks, so that they decide alike
      steps.step();
    }
    auto const everybodys = fabric.all_gather(at::tensor(rates));
    expect(everybodys.eq(everybodys[0]).all().template item<bool>(), "rates are alike on all ranks");
    auto weights = whole_weights(fabric, one);
    for (auto const& weight : whole_weights(fabric, two)) weights.push_back(weight);
    return std::pair(rates, weights);
  });
}

}  // namespace

TEST_CASE("schedulers on handles: LambdaLR, StepLR, and a plateau of the ranks' common loss", "[fabric]") {
  auto const [rates, weights] = train_with_schedules<Single>(1);
  double const warm_up[] = {1 / 3.0, 2 / 3.0, 1.0, 1 / 2.0, 1 / 3.0, 1 / 4.0}, steps[] = {1, 1, 1, 0.1, 0.1, 0.01};
  for (int step = 0; step < 6; ++step) {
    CHECK(rates[3 * step] == Catch::Approx(0.1 * warm_up[step]));
    CHECK(rates[3 * step + 2] == Catch::Approx(0.1 * steps[step]));
  }
  CHECK(rates[3 * 5 + 1] < 0.1);  // the loss does not halve from step to step
  for (int world : {2, 3}) {
    INFO("world " << world);
    auto const [rates_there, weights_there] = train_with_schedules<weft::DDP<>>(world);
    CHECK(rates_there == rates);
    check_close(weights_there, weights);
    auto const [sharded_rates, sharded_weights] = train_with_schedules<Sharded>(world);
    CHECK(sharded_rates == rates);
    check_close(sharded_weights, weights);
  }
}

TEST_CASE("CKP-05: weights filtered on the way out or in: what is left out stays as it is, and is reported",
          "[fabric][known]") {
  auto const check = []<class Strategy>(std::type_identity<Strategy>, int world) {
    auto const name = "weft-" + std::to_string(::getpid());
    auto const path = std::filesystem::temp_directory_path() / (name + "-all.safetensors"),
               biases = std::filesystem::temp_directory_path() / (name + "-biases.safetensors");
    CHECK(on_ranks<Strategy>(world, [&](Run<Strategy>& fabric) {
      fabric.seed_everything(9);
      auto trained = fabric.setup(Net(3, 2));
      auto const saved = whole_weights(fabric, trained);
      auto model = fabric.setup(Net(3, 2));
      auto const start = whole_weights(fabric, model);
      // Of [bias, first.linear.weight, first.linear.bias, last.linear.weight, last.linear.bias] these are filled.
      auto const expect_filled = [&](std::vector<bool> const& filled, std::string const& what) {
        auto const now = whole_weights(fabric, model);
        for (std::size_t i = 0; i < now.size(); ++i)
          expect(now[i].equal(filled[i] ? saved[i] : start[i]), what + ", tensor " + std::to_string(i));
      };
      fabric.save_weights(biases, trained,
                          {.filter = [](std::string_view name, at::Tensor const&) { return name.ends_with("bias"); }});
      expect(contains(message_of([&] { fabric.load_weights(biases, model); }),
                      "missing from it: first.linear.weight, last.linear.weight. Nothing was loaded"),
             "strict: names");
      expect_filled({false, false, false, false, false}, "refused");
      auto const report = fabric.load_weights(biases, model, {.strict = false});
      expect(report.missing == std::vector<std::string>{"first.linear.weight", "last.linear.weight"} &&
                 report.loaded.size() == 3,
             "a report");
      expect_filled({true, false, true, false, true}, "biases");

      fabric.save_weights(path, trained);
      auto const of_first = fabric.load_weights(path, model,
                                                {.filter = [](std::string_view name, at::Tensor const& value) {
                                                  return name.starts_with("first.") && value.dim() == 2;
                                                }});
      expect(of_first.loaded == std::vector<std::string>{"first.linear.weight"} && of_first.filtered.size() == 4 &&
                 of_first.missing.empty() && of_first.unexpected.empty(),
             "strict, by whole shapes");
      expect_filled({true, true, true, false, true}, "and the first layer's weight");

      // A module that is not set up: a fine-tuned model with another head.
      Net bare(3, 4);
      auto const head = bare->last->linear->weight.detach().clone();
      expect(contains(message_of([&] { fabric.load_raw(path, bare); }),
                      "last.linear.weight has shape [2, 5] in the file and [4, 5] in the model"),
             "another head");
      fabric.load_raw(path, bare,
                      {.filter = [](std::string_view name, at::Tensor const&) { return name.starts_with("first."); }});
      expect(bare->first->linear->weight.equal(saved[1]) && bare->last->linear->weight.equal(head), "all but the head");
      expect(contains(message_of([&] { fabric.load_raw(path, Net(nullptr)); }), "load_raw: the module holder is empty"),
             "no module");
      return true;
    }));
    std::filesystem::remove(path);
    std::filesystem::remove(biases);
  };
  check(std::type_identity<Single>(), 1);
  check(std::type_identity<weft::DDP<>>(), 2);
  check(std::type_identity<Sharded>(), 3);
}
