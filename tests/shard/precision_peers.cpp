#include "ranks.hpp"

#include <fstream>

#include <nlohmann/json.hpp>

#include "raw_training.hpp"

using namespace test;
using weft::Bf16, weft::Bf16Mixed, weft::Bucket, weft::Fp32, weft::FSDP;

namespace {

using Blocks = weft::WrapPolicy<llama::TransformerBlock>;
/// FSDP2's MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32).
using Policy = weft::MixedPrecision<Bf16, Fp32, Fp32, Fp32>;
using Two = weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", 2>>;

nlohmann::json golden(std::string const& name) {
  return nlohmann::json::parse(std::ifstream(WEFT_TEST_DATA "/golden/" + name + ".json"));
}

/// A peer's run by weft: losses and gradient norms of the same loop without weft on this processor to `tolerance`, and
/// of the recorded curve as far as processors differ; see [Note: bits of a processor] in raw_training.hpp.
template <class Strategy, class Precision, class Description>
void follow(std::string const& name, Description const& description, test::RawRun const& raw, double tolerance) {
  auto const peer = golden(name);
  REQUIRE(peer["arguments"].get<std::string>().find(raw.shape) != std::string::npos);
  REQUIRE(peer["held_by_rank"].size() == static_cast<std::size_t>(raw.ranks));
  auto const reference = test::raw_training(raw);
  auto const shape = formula::shapes().at(raw.shape);
  auto const accumulate = raw.accumulate;
  double const clip = raw.clip > 0 ? raw.clip : 1e9;
  using Run = weft::Fabric<Strategy, Precision, weft::On<weft::Cpu>>;
  auto outcome = Run::launch({.devices = static_cast<int>(raw.ranks)}, [&](Run& fabric) {
    llama::LanguageModel module(shape);
    formula::initialize(*module, 0);
    auto [model, optimizer] = fabric.setup(module, description);
    int64_t const count = shape.batch / fabric.world_size();
    std::vector<double> curve;
    for (int64_t step = 0; step < 10; ++step) {
      double sum = 0;
      for (int64_t micro = 0; micro < accumulate; ++micro) {
        auto const [inputs, targets] = formula::tokens(
            (step * accumulate + micro) * shape.batch + fabric.global_rank() * count, count, shape, 0);
        auto const guard = fabric.no_backward_sync(model, micro + 1 < accumulate);
        auto const loss = llama::loss_of(model(inputs), targets) / accumulate;
        fabric.backward(loss);
        sum += loss.template item<double>();
      }
      curve.push_back(fabric.all_reduce(sum));
      curve.push_back(fabric.clip_gradients(model, optimizer, weft::ClipNorm{clip}).template item<double>());
      optimizer.step();
      optimizer.zero_grad();
    }
    return curve;
  });
  if (!outcome) FAIL(outcome.failures().front().message);
  std::vector<double> const curve = std::move(*outcome);
  for (std::size_t step = 0; step < 10; ++step) {
    INFO(name << ", step " << step);
    CHECK(curve[2 * step] == Catch::Approx(reference.losses[step]).epsilon(tolerance));
    CHECK(curve[2 * step + 1] == Catch::Approx(reference.grad_norms[step]).epsilon(tolerance));
    CHECK(curve[2 * step] == Catch::Approx(peer["losses"][step].get<double>()).epsilon(std::max(tolerance, 1e-3)));
    CHECK(curve[2 * step + 1] ==
          Catch::Approx(peer["grad_norms"][step].get<double>()).epsilon(std::max(tolerance, 1e-2)));
  }
}

}  // namespace

TEST_CASE("parameters gathered in bf16, gradients reduced in fp32: the curves of FSDP2 with that policy",
          "[shard][precision][processor]") {
  weft::SGD const sgd{.lr = 0.5};
  test::RawRun const two{.bf16 = test::Bf16In::parameter_copies, .ranks = 2},
      four{.bf16 = test::Bf16In::parameter_copies, .ranks = 4};
  test::RawRun const odd{
      .shape = "odd", .bf16 = test::Bf16In::parameter_copies, .ranks = 4, .accumulate = 2, .clip = 1.0, .adamw = true};
  follow<FSDP<weft::FullShard, Blocks, Bucket<1>>, Policy>("fsdp2-2_tiny_bf16-mixed", sgd, two, 1e-6);
  follow<FSDP<weft::FullShard, Blocks>, Bf16Mixed>("fsdp2-2_tiny_bf16-mixed", sgd, two, 1e-6);
  follow<FSDP<weft::FullShard, Blocks>, Bf16Mixed>("fsdp2-4_odd_bf16-mixed-adamw-acc2-clip", weft::AdamW{.lr = 0.003},
                                                   odd, 1e-3);  // Adam makes steps of what is rounding alone
  follow<FSDP<weft::ShardGradOp, Blocks>, Policy>("fsdp2-shard-grad-op-2_tiny_bf16-mixed", sgd, two, 1e-6);
  follow<FSDP<weft::HybridShard, Blocks, Two>, Policy>("hsdp-2x2_tiny_bf16-mixed", sgd, four, 1e-6);
}

TEST_CASE("all in bf16: the curve of FSDP2, which reduces in bf16 and not in fp32, to a few thousandths",
          "[shard][precision][processor]") {
  follow<FSDP<weft::FullShard, Blocks>, Bf16>("fsdp2-2_tiny_bf16-true", weft::SGD{.lr = 0.5},
                                              {.bf16 = test::Bf16In::everything, .ranks = 2}, 1e-6);
}
