#include "models.hpp"

#include <array>
#include <chrono>
#include <filesystem>
#include <thread>

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
template <class Sharding, class... Options>
using Sharded = weft::FSDP<Sharding, Wrap, Options...>;
using OneByOne = weft::Bucket<1>;
auto const uneven = [] { return Uneven(); };

/// By tag; of all ranks the largest.
struct Peaks {
  std::array<weft::report::Held, weft::core::num_memory_tags> held{};
  weft::report::Held const& of(MemoryTag tag) const { return held[static_cast<std::size_t>(tag)]; }
  weft::report::Held& of(MemoryTag tag) { return held[static_cast<std::size_t>(tag)]; }
};

/// A backend's threads let go of their last tensors soon after those who wait are woken.
void settle(MemoryCount const& memory) {
  for (int i = 0; i < 200 && memory.of(MemoryTag::gradients).bytes + memory.of(MemoryTag::reduce).bytes > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

template <class Program, class Make, class Step>
Peaks peaks(int world, Make const& make, Step const& step) {
  auto outcome = Program::launch({.devices = world}, [&](Program& fabric) {
    fabric.seed_everything(1);
    MemoryCount const memory;
    auto [model, optimizer] = fabric.setup(make(), weft::AdamW{.lr = 1e-2});
    auto const before = memory.of(MemoryTag::rest).bytes;
    memory.reset_peaks();
    for (int i = 0; i < 4; ++i) step(fabric, model, optimizer);
    settle(memory);
    auto const counted = Peaks{{memory.of(MemoryTag::rest), memory.of(MemoryTag::parameters), memory.of(MemoryTag::gathered), memory.of(MemoryTag::gradients),
                                memory.of(MemoryTag::reduce), memory.of(MemoryTag::optimizer)}};
    auto numbers = at::zeros({static_cast<int64_t>(weft::core::num_memory_tags), 4}, at::kLong);
    for (std::size_t tag = 0; tag < counted.held.size(); ++tag) {
      auto const& held = counted.held[tag];
      int64_t i = 0;
      for (auto const number : {held.bytes, held.blocks, held.peak_bytes, held.peak_blocks}) numbers[static_cast<int64_t>(tag)][i++] = static_cast<int64_t>(number);
    }
    numbers[0][0] -= static_cast<int64_t>(before);  // of the rest what training has added
    numbers[0][2] -= static_cast<int64_t>(before);
    if (fabric.world_size() > 1) numbers = fabric.all_reduce(numbers, weft::ReduceOp::max);
    return std::vector<std::size_t>(numbers.template data_ptr<int64_t>(), numbers.template data_ptr<int64_t>() + numbers.numel());
  });
  if (!outcome) FAIL(outcome.failures().front().message);
  Peaks found;
  for (std::size_t tag = 0; tag < found.held.size(); ++tag) {
    auto const* const number = &(*outcome)[4 * tag];
    found.held[tag] = {number[0], number[1], number[2], number[3]};
  }
  return found;
}

auto const train_step = [](auto& fabric, auto& model, auto& optimizer) {
  auto const generator = at::detail::createCPUGenerator(3);
  fabric.backward(model(at::randn({4, 5}, generator)).pow(2).mean());
  optimizer.step();
  optimizer.zero_grad();
};

/// What one process holds beside parameters, states and gradients: each gradient goes as soon as it has come.
std::size_t rest_of_one_process() {
  struct Drop final : torch::autograd::FunctionPostHook {
    explicit Drop(at::Tensor it) : parameter(std::move(it)) {}
    torch::autograd::variable_list operator()(torch::autograd::variable_list const& outputs, torch::autograd::variable_list const&) override {
      parameter.mutable_grad().reset();
      return outputs;
    }
    at::Tensor parameter;
  };
  using Program = weft::Fabric<weft::SingleDevice, weft::On<weft::Cpu>>;
  std::vector<weft::unit::NodePtr> hooked;
  return peaks<Program>(1, uneven, [&](auto& fabric, auto& model, auto& optimizer) {
           if (hooked.empty())
             for (auto const& parameter : model.parameters())
               if (parameter.requires_grad()) {
                 hooked.push_back(torch::autograd::impl::grad_accumulator(parameter));
                 hooked.back()->add_post_hook(std::make_unique<Drop>(parameter));
               }
           train_step(fabric, model, optimizer);
         })
      .of(MemoryTag::rest)
      .peak_bytes;
}

template <class... Policies>
void probe(int world) {
  auto const shape = weft::shape_of<Policies...>(Uneven(), 2);
    auto const e = weft::estimate<Policies...>(shape, world);
    auto p = peaks<weft::Fabric<Policies..., weft::On<weft::Cpu>>>(world, uneven, train_step);
    std::string line;
    for (std::size_t i = 0; i < p.held.size(); ++i)
      line += weft::core::sentence(name_of(static_cast<MemoryTag>(i)), ": peak ", p.held[i].peak_bytes, " in ", p.held[i].peak_blocks, ", left ", p.held[i].bytes, "; ");
    WARN(world << " " << line << "\n est " << " par " << e.parameter_bytes << " gath " << e.gathered_peak_bytes << " grad " << e.gradient_bytes << " reduce " << e.reduce_peak_bytes << " opt " << e.optimizer_bytes);
}

}  // namespace

TEST_CASE("probe", "[shard]") {
  WARN("single " << rest_of_one_process());
  for (int world : {1, 2, 4}) {
  WARN("full 1"); probe<Sharded<weft::FullShard, OneByOne>>(world);
  WARN("gradop"); probe<Sharded<weft::ShardGradOp, OneByOne>>(world);
  WARN("no"); probe<Sharded<weft::NoShard, OneByOne>>(world);
  }
}
