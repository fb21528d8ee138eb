#include "models.hpp"

using namespace test;
using weft::AccumulateSharded, weft::Bf16, weft::Bf16Mixed, weft::Bucket, weft::FSDP, weft::FullShard, weft::HybridShard, weft::NoShard, weft::ShardGradOp;

namespace {

using Blocks = weft::WrapPolicy<Block>;
using Halves = weft::Mesh<weft::Axis<"replicate", weft::Infer>, weft::Axis<"shard", 2>>;
template <class Strategy, class Precision>
using Program = weft::Fabric<Strategy, Precision, weft::On<weft::Cpu>>;

template <class Strategy, class Precision, class Function>
auto launch(int world, Function function) {
  using Fabric = Program<Strategy, Precision>;
  auto outcome = Fabric::launch({.devices = world}, std::function<std::invoke_result_t<Function&, Fabric&>(Fabric&)>(std::move(function)));
  if (!outcome) FAIL(outcome.failures().front().message);
  return std::move(*outcome);
}

at::Tensor batch_of(Training const& t, int64_t micro) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + micro));
  return at::randn({t.batch, 5}, generator);
}

/// Losses, norms, and the weights after each step.
template <class Strategy, class Precision, class Description>
Record trained(int world, Description const& description, Training const& t = {}) {
  return launch<Strategy, Precision>(world, [&](Program<Strategy, Precision>& fabric) {
    fabric.seed_everything(1);
    auto [model, optimizer] = fabric.setup(Stack(), description);
    Record record;
    int64_t const local = t.batch / world;
    for (int64_t step = 0; step < t.steps; ++step) {
      double sum = 0;
      for (int64_t micro = 0; micro < t.accumulate; ++micro) {
        auto const x = batch_of(t, step * t.accumulate + micro).narrow(0, fabric.global_rank() * local, local);
        auto const guard = fabric.no_backward_sync(model, micro + 1 < t.accumulate);
        auto const output = model(x);
        expect(output.scalar_type() == at::kFloat, "outputs in fp32");
        auto const loss = output.pow(2).mean() / static_cast<double>(t.accumulate);
        fabric.backward(loss);
        sum += loss.template item<double>();
      }
      record.first.push_back(fabric.all_reduce(sum));
      record.first.push_back(fabric.clip_gradients(model, optimizer, weft::ClipNorm{t.clip}).template item<double>());
      optimizer.step();
      optimizer.zero_grad();
    }
    record.second = whole_weights(fabric, model);
    return record;
  });
}

/// The same by hand, in one process: a bf16 copy computes, each rank's batch by itself; what it gives is averaged in fp32, for fp32 masters.
template <class Description>
Record by_hand(int world, Description const& description, Training const& t = {}, bool sums_in_low = false) {
  torch::manual_seed(1);
  Stack masters, low;
  low->to(at::kBFloat16);
  std::vector<weft::optim::NamedParameter> named;
  for (auto const& item : masters->named_parameters()) named.push_back({item.key(), item.value()});
  auto const optimizer = description.make(named);
  Record record;
  int64_t const local = t.batch / world;
  auto const weights = masters->parameters(), copies = low->parameters();
  for (int64_t step = 0; step < t.steps; ++step) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      at::NoGradGuard const no_grad;
      copies[i].copy_(weights[i]);
      weights[i].mutable_grad() = at::zeros_like(weights[i]);
    }
    double sum = 0;
    for (int rank = 0; rank < world; ++rank)
      for (int64_t micro = 0; micro < t.accumulate; ++micro) {
        auto const x = batch_of(t, step * t.accumulate + micro).narrow(0, rank * local, local);
        auto const loss = low->forward(x.to(at::kBFloat16)).to(at::kFloat).pow(2).mean() / static_cast<double>(t.accumulate);
        loss.backward();
        sum += loss.item<double>() / world;
        for (std::size_t i = 0; i < weights.size(); ++i) {
          weights[i].mutable_grad().add_(copies[i].grad().to(at::kFloat), 1.0 / world);
          copies[i].mutable_grad().reset();
        }
      }
    record.first.push_back(sum);
    record.first.push_back(weft::optim::clip(weights, weft::ClipNorm{t.clip}).item<double>());
    optimizer->step();
  }
  for (auto const& weight : weights) record.second.push_back(weight.detach().clone());
  static_cast<void>(sums_in_low);
  return record;
}

}  // namespace

TEST_CASE("bf16 copies of fp32 masters: a sharded run is what one process computes by hand", "[shard][precision]") {
  auto const compare = []<class Strategy>(std::type_identity<Strategy>, auto const& description, Training const& t, std::vector<int> const& worlds) {
    for (int const world : worlds) {
      INFO("world " << world);
      check_equal(trained<Strategy, Bf16Mixed>(world, description, t), by_hand(world, description, t), 1e-6);
    }
  };
  SECTION("full shard") { compare(std::type_identity<FSDP<FullShard, Blocks, Bucket<1>>>(), weft::AdamW{.lr = 1e-2}, {}, {1, 2, 3, 4}); }
}
