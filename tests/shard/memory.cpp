#include "models.hpp"

#include <array>
#include <filesystem>

#include <weft/report/allocator.hpp>
#include <weft/report/memory.hpp>
#include <weft/shard/estimate.hpp>
#include <weft/shard/shape_of.hpp>

using namespace test;
using weft::report::MemoryCount;
using weft::report::MemoryTag;

namespace {

/// As large as it is told to be: windows over neighbours differ. Every third element of a model is frozen.
struct SizedImpl : torch::nn::Module {
  explicit SizedImpl(int64_t hidden) {
    up = register_module("up", torch::nn::Linear(8, hidden));
    down = register_module("down", torch::nn::Linear(hidden, 8));
    scale = register_parameter("scale", torch::ones({hidden}), /*requires_grad=*/hidden % 2 == 0);
  }
  at::Tensor forward(at::Tensor const& x) { return x + down(torch::tanh(up(x) * scale)); }
  torch::nn::Linear up = nullptr, down = nullptr;
  at::Tensor scale;
};
WEFT_MODULE(Sized);

struct UnevenImpl : torch::nn::Module {
  UnevenImpl() {
    in = register_module("in", torch::nn::Linear(5, 8));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t const hidden : {40, 11, 64, 90, 33, 70, 5, 12}) blocks->push_back(Sized(hidden));
    out = register_module("out", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(at::Tensor const& x) {
    auto h = in(x);
    for (auto const& block : *blocks) h = block->as<Sized>()->forward(h);
    return out(h);
  }
  torch::nn::Linear in = nullptr, out = nullptr;
  torch::nn::ModuleList blocks = nullptr;
};
TORCH_MODULE(Uneven);

using Wrap = weft::WrapPolicy<Sized>;
auto const uneven = [] { return Uneven(); };

/// The largest of all ranks, by tag.
struct Peaks {
  std::array<int64_t, weft::core::num_memory_tags> peak{}, blocks{}, left{};
  std::string text() const {
    std::string line;
    for (std::size_t i = 0; i < peak.size(); ++i)
      line += weft::core::sentence(name_of(static_cast<MemoryTag>(i)), ": peak ", peak[i], " in ", blocks[i], ", left ", left[i], "; ");
    return line;
  }
};

template <class... Policies, class Make>
Peaks peaks(int world, Make const& make) {
  using Program = weft::Fabric<Policies..., weft::On<weft::Cpu>>;
  auto outcome = Program::launch({.devices = world}, [&](Program& fabric) {
    fabric.seed_everything(1);
    MemoryCount const memory;
    auto [model, optimizer] = fabric.setup(make(), weft::AdamW{.lr = 1e-2});
    auto const x = at::randn({4, 5});
    memory.reset_peaks();
    for (int step = 0; step < 4; ++step) {
      {
        auto const loss = model(x).pow(2).mean();
        fabric.backward(loss);
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    if (std::getenv("SLEEPY")) { fabric.barrier(); usleep(200000); }
    auto numbers = at::zeros({3, weft::core::num_memory_tags}, at::kLong);
    std::array<weft::report::Held, weft::core::num_memory_tags> held;
    for (std::size_t i = 0; i < held.size(); ++i) held[i] = memory.of(static_cast<MemoryTag>(i));
    for (std::size_t i = 0; i < held.size(); ++i) {
      auto const at = static_cast<int64_t>(i);
      numbers[0][at] = static_cast<int64_t>(held[i].peak_bytes);
      numbers[1][at] = static_cast<int64_t>(held[i].peak_blocks);
      numbers[2][at] = static_cast<int64_t>(held[i].bytes);
    }
    return std::vector<int64_t>(numbers.data_ptr<int64_t>(), numbers.data_ptr<int64_t>() + numbers.numel());
  });
  if (!outcome) FAIL(outcome.failures().front().message);
  Peaks found;
  auto const numbers = *outcome;
  for (std::size_t i = 0; i < weft::core::num_memory_tags; ++i) {
    found.peak[i] = numbers[i];
    found.blocks[i] = numbers[weft::core::num_memory_tags + i];
    found.left[i] = numbers[2 * weft::core::num_memory_tags + i];
  }
  return found;
}

template <class... Policies>
void probe() {
  auto const shape = weft::shape_of<Policies...>(Uneven(), 2);
  for (int world : {1, 2, 4}) {
    auto const e = weft::estimate<Policies...>(shape, world);
    WARN(world << " " << peaks<Policies...>(world, uneven).text() << "\n est " << " par " << e.parameter_bytes << " gath " << e.gathered_peak_bytes << " grad " << e.gradient_bytes << " reduce " << e.reduce_peak_bytes << " opt " << e.optimizer_bytes);
  }
}

}  // namespace

TEST_CASE("probe", "[shard]") {
  WARN("full 1"); probe<weft::FSDP<weft::FullShard, Wrap, weft::Bucket<1>>>();
  WARN("gradop"); probe<weft::FSDP<weft::ShardGradOp, Wrap, weft::Bucket<1>>>();
  WARN("no"); probe<weft::FSDP<weft::NoShard, Wrap, weft::Bucket<1>>>();
}
