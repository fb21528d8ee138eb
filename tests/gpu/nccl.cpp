// NCCL on real devices: every collective, and steps that equal Gloo's on the CPU. No Catch2 and no fixtures, so that it
// builds by hand: run.sh.
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <weft/launch/simulated.hpp>
#include <weft/nn/layers.hpp>
#include <weft/report/memory_summary.hpp>
#include <weft/weft.hpp>

#include "../comm/every_collective.hpp"

using namespace weft;
using Tensors = std::vector<at::Tensor>;

namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl() { linear = register_module("linear", weft::nn::Linear(64, 64)); }
  at::Tensor forward(at::Tensor const& x) { return x + torch::tanh(linear(x)); }
  weft::nn::Linear linear = nullptr;
};
WEFT_MODULE(Block);
using Wrap = WrapPolicy<Block>;

/// Five steps; whole parameters afterwards, on the CPU.
template <class AnyFabric>
Tensors train(AnyFabric& fabric) {
  fabric.seed_everything(5);
  auto [model, optimizer] = fabric.setup(torch::nn::Sequential(Block(), torch::nn::Linear(64, 64), Block()),
                                         weft::SGD{.lr = 0.05});
  for (int step = 0; step < 5; ++step) {
    auto const batch = at::linspace(-1, 1, 16 * 64).reshape({16, 64}) * (fabric.global_rank() + 1);
    fabric.backward(model(batch.to(fabric.device())).square().mean());
    fabric.clip_gradients(model, optimizer, ClipNorm{1.0});
    optimizer.step();
    optimizer.zero_grad();
  }
  auto const whole = fabric.summon_full_params(model);
  Tensors values;
  for (auto const& row : model.table().rows()) values.push_back(row.tensor.detach().cpu().clone());
  return values;
}

int failed = 0;
void check(std::string const& name, std::function<std::string()> const& run) {
  auto const start = std::chrono::steady_clock::now();
  std::string reason;
  try {
    reason = run();
  } catch (std::exception const& error) {
    reason = error.what();
  }
  failed += !reason.empty();
  std::cout << (reason.empty() ? "passed  " : "FAILED  ") << name << "  "
            << std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() << " s"
            << (reason.empty() ? "" : ": " + reason) << std::endl;
}

template <class Backend>
std::string collectives(int devices) {
  using Run = Fabric<DDP<>, On<Cuda>, Backend>;
  auto const outcome = Run::launch(
      {.devices = devices, .collective_timeout = std::chrono::seconds(60)}, [](Run& fabric) {
        test::run_every_collective(*fabric.world());
        auto const memory = at::ones({1 << 20}, at::TensorOptions().device(fabric.device()));
        auto const known = fabric.world()->register_buffer(memory);
        fabric.world()->all_reduce(memory);
        test::expect(memory.eq(fabric.world_size()).all().template item<bool>(), "a sum in registered memory");
        // Memory that its owner lets go while a collective is under way is not handed on before it is done.
        auto const whole = at::empty({fabric.world_size() << 16}, memory.options());
        for (int i = 0; i < 200; ++i) {
          auto call = fabric.world()->all_gather_into_async(whole, at::full({1 << 16}, i, memory.options()));
          auto const other = at::full({1 << 16}, -7, memory.options());
          call.wait();
          test::expect(whole.eq(i).all().template item<bool>(), "what was gathered from memory that was let go");
        }
      });
  return outcome ? "" : outcome.failures().front().message;
}

template <class Strategy, class Backend>
std::string equals_gloo(int devices) {
  using OnGpu = Fabric<Strategy, On<Cuda>, Backend>;
  using OnCpu = Fabric<Strategy, On<Cpu>, Gloo>;
  auto there = OnGpu::launch({.devices = devices, .collective_timeout = std::chrono::seconds(60)},
                             [](OnGpu& fabric) { return train(fabric); });
  auto here = OnCpu::launch({.devices = devices}, [](OnCpu& fabric) { return train(fabric); });
  if (!there) return there.failures().front().message;
  if (!here) return here.failures().front().message;
  for (std::size_t i = 0; i < here->size(); ++i)
    if (!at::allclose((*there)[i], (*here)[i], 1e-3, 1e-4))
      return "parameter " + std::to_string(i) + " differs by " +
             std::to_string(((*there)[i] - (*here)[i]).abs().max().template item<double>());
  return "";
}

struct DropBlockImpl : torch::nn::Module {
  DropBlockImpl() { linear = register_module("linear", weft::nn::Linear(64, 64)); }
  at::Tensor forward(at::Tensor const& x) { return x + at::dropout(at::gelu(linear(x)), 0.3, is_training()); }
  weft::nn::Linear linear = nullptr;
};
WEFT_MODULE(DropBlock);

template <class... Policies>
Tensors train_dropping() {
  using Run = Fabric<SingleDevice, On<Cuda>, Policies...>;
  auto outcome = Run::launch([](Run& fabric) {
    fabric.seed_everything(5);
    auto [model, optimizer] = fabric.setup(torch::nn::Sequential(DropBlock(), DropBlock(), DropBlock()),
                                           weft::SGD{.lr = 0.05});
    for (int step = 0; step < 5; ++step) {
      fabric.backward(model(at::randn({256, 64}, at::TensorOptions().device(fabric.device()))).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    Tensors values;
    for (auto const& parameter : model.parameters()) values.push_back(parameter.detach().cpu().clone());
    values.push_back(at::rand({4}, at::TensorOptions().device(fabric.device()))
                         .cpu());  // random numbers go on as if nothing had been
    return values;
  });
  return outcome.value();
}
/// The device's random numbers in the re-run, and pinned copies beside the computation. In this process, too.
std::string activations() {
  auto const kept = train_dropping<>();
  auto const same = [&](Tensors const& other) {
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (!other.at(i).equal(kept[i])) return false;
    return true;
  };
  if (!same(train_dropping<ActivationCheckpointing<DropBlock>>())) return "recomputed blocks differ from kept ones";
  if (!same(train_dropping<OffloadActivations<DropBlock>>()))
    return "blocks whose activations wait on the host differ from kept ones";
  if (!same(train_dropping<OffloadActivations<DropBlock>, ActivationCheckpointing<DropBlock>>()))
    return "recomputed blocks whose inputs wait on the host differ from kept ones";
  return "";
}

/// Gathered storages come and go on real CUDA memory; the values of the other ranks are made up. In this process, so it
/// is last.
std::string sharded_alone() {
  using Run = Fabric<FSDP<FullShard, Wrap>, On<Cuda>, Simulated<4>>;
  auto const outcome = Run::launch([](Run& fabric) {
    for (auto const& value : train(fabric))
      test::expect(value.isfinite().all().template item<bool>(), "finite parameters");
  });
  return outcome ? "" : outcome.failures().front().message;
}

/// The caching allocator's account of one tensor, and of its end.
std::string memory() {
  auto const device = at::Device(at::kCUDA, 0);
  constexpr std::size_t bytes = 4 << 20;
  auto const now = [&] { return report::memory_summary(device).device->allocated_bytes.now; };
  at::empty({1}, device).reset();  // the allocator is there from here on
  auto const before = now();
  {
    auto const tensor = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
    if (now() != before + bytes) return core::message(now(), " bytes allocated, expected ", before + bytes);
  }
  if (now() != before || report::peak_bytes(device) < before + bytes)
    return "the peak of a tensor that is gone is not there";
  report::reset_peaks(device);
  return report::peak_bytes(device) == before
             ? ""
             : core::message("a peak of ", report::peak_bytes(device), " after its reset, expected ", before);
}

}  // namespace

int main() {
  int const devices = launch::count_cuda_devices();
  if (devices == 0) {
    std::cout << "skipped: this machine shows no CUDA device" << std::endl;
    return 77;
  }
  for (int world = 1; world <= std::min(devices, 4); ++world) {
    auto const name = [&](char const* what) { return std::string(what) + ", world " + std::to_string(world); };
    check(name("every collective, Nccl"), [&] { return collectives<Nccl>(world); });
    check(name("every collective, NcclDirect"), [&] { return collectives<NcclDirect>(world); });
    check(name("a DDP step, Nccl"), [&] { return equals_gloo<DDP<>, Nccl>(world); });
    check(name("a DDP step, NcclDirect"), [&] { return equals_gloo<DDP<>, NcclDirect>(world); });
    check(name("an FSDP step, Nccl"), [&] { return equals_gloo<FSDP<FullShard, Wrap>, Nccl>(world); });
    check(name("an FSDP step, NcclDirect"), [&] { return equals_gloo<FSDP<FullShard, Wrap>, NcclDirect>(world); });
  }
  if (devices >= 4) {
    using Hybrid = FSDP<HybridShard, Wrap, Mesh<Axis<"replicate", 2>, Axis<"shard", 2>>>;
    check("a hybrid step on communicators that are split, Nccl, 2 by 2", [] { return equals_gloo<Hybrid, Nccl>(4); });
    check("a hybrid step on communicators that are split, NcclDirect, 2 by 2",
          [] { return equals_gloo<Hybrid, NcclDirect>(4); });
  }
  check("a sharded step as one of 4 simulated ranks", sharded_alone);
  check("recomputed and offloaded activations have the bits of kept ones", activations);
  check("memory of the device, its peak and the peak's reset", memory);
  std::cout << (failed == 0 ? "all passed" : std::to_string(failed) + " failed") << std::endl;
  return failed == 0 ? 0 : 1;
}
