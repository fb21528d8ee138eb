#include "ranks.hpp"

#include <fstream>

#include <nlohmann/json.hpp>

#include "../../examples/formula.hpp"

using namespace test;
using weft::Bf16, weft::Bf16Mixed, weft::Bucket, weft::Fp32, weft::FSDP;

namespace {

using Blocks = weft::WrapPolicy<llama::TransformerBlock>;
/// FSDP2's MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32).
using Policy = weft::MixedPrecision<Bf16, Fp32, Fp32, Fp32>;
using Two = weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", 2>>;

nlohmann::json golden(std::string const& name) { return nlohmann::json::parse(std::ifstream(WEFT_TEST_DATA "/golden/" + name + ".json")); }

/// The losses and gradient norms of a peer's run, by weft.
template <class Strategy, class Precision, class Description>
void follow(std::string const& name, Description const& description, int64_t accumulate, double clip, double tolerance) {
  auto const peer = golden(name);
  auto const shape = formula::shapes().at(peer["arguments"].get<std::string>().find("odd") == std::string::npos ? "tiny" : "odd");
  using Run = weft::Fabric<Strategy, Precision, weft::On<weft::Cpu>>;
  auto outcome = Run::launch({.devices = static_cast<int>(peer["held_by_rank"].size())}, [&](Run& fabric) {
    llama::LanguageModel module(shape);
    formula::initialise(*module, 0);
    auto [model, optimizer] = fabric.setup(module, description);
    int64_t const count = shape.batch / fabric.world_size();
    std::vector<double> curve;
    for (int64_t step = 0; step < 10; ++step) {
      double sum = 0;
      for (int64_t micro = 0; micro < accumulate; ++micro) {
        auto const [inputs, targets] = formula::tokens((step * accumulate + micro) * shape.batch + fabric.global_rank() * count, count, shape, 0);
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
    CHECK(curve[2 * step] == Catch::Approx(peer["losses"][step].get<double>()).epsilon(tolerance));
    CHECK(curve[2 * step + 1] == Catch::Approx(peer["grad_norms"][step].get<double>()).epsilon(tolerance));
  }
}

}  // namespace

TEST_CASE("parameters gathered in bf16, gradients reduced in fp32: the curves of FSDP2 with that policy", "[shard][precision]") {
  weft::SGD const sgd{.lr = 0.5};
  double const none = 1e9;
  follow<FSDP<weft::FullShard, Blocks, Bucket<1>>, Policy>("fsdp2-2_tiny_bf16-mixed", sgd, 1, none, 1e-6);
  follow<FSDP<weft::FullShard, Blocks>, Bf16Mixed>("fsdp2-2_tiny_bf16-mixed", sgd, 1, none, 1e-6);
  follow<FSDP<weft::FullShard, Blocks>, Bf16Mixed>("fsdp2-4_odd_bf16-mixed-adamw-acc2-clip", weft::AdamW{.lr = 0.003}, 2, 1.0, 1e-3);  // Adam makes steps of what is rounding alone
  follow<FSDP<weft::ShardGradOp, Blocks>, Policy>("fsdp2-shard-grad-op-2_tiny_bf16-mixed", sgd, 1, none, 1e-6);
  follow<FSDP<weft::HybridShard, Blocks, Two>, Policy>("hsdp-2x2_tiny_bf16-mixed", sgd, 1, none, 1e-6);
}

TEST_CASE("all in bf16: the curve of FSDP2, which reduces in bf16 and not in fp32, to a few thousandths", "[shard][precision]") {
  follow<FSDP<weft::FullShard, Blocks>, Bf16>("fsdp2-2_tiny_bf16-true", weft::SGD{.lr = 0.5}, 1, 1e9, 5e-3);
}
