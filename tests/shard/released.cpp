#include <unistd.h>

#include <weft/nn/layers.hpp>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include <c10/core/CPUAllocator.h>

#include "ranks.hpp"

using namespace test;
using weft::FSDP, weft::FullShard, weft::ShardGradOp, weft::NoShard, weft::Bucket, weft::AccumulateSharded;

namespace {

/// How many blocks of one size a process holds, now and at most since reset(). Each rank is a process of its own, so it
/// may count for itself.
class Blocks final : public c10::Allocator {
 public:
  static Blocks& of(std::size_t bytes) {
    static Blocks blocks;
    blocks.bytes_ = bytes;
    c10::SetCPUAllocator(&blocks, /*priority=*/255);
    return blocks;
  }
  int now() const { return now_; }
  int most() const { return most_; }
  void reset() { most_ = now_.load(); }

  c10::DataPtr allocate(std::size_t n) override {
    auto inner = c10::GetDefaultCPUAllocator()->allocate(n);
    bool const counts = n == bytes_ && ::gettid() == ::getpid();  // not what Gloo's threads copy into
    if (counts) {
      int const now = ++now_;
      for (int most = most_; now > most && !most_.compare_exchange_weak(most, now);) {
      }
    }
    auto* const data = inner.get();
    return {data, new Block{std::move(inner), counts ? this : nullptr}, &Blocks::free, at::kCPU};
  }
  void copy_data(void* to, void const* from, std::size_t count) const override { default_copy_data(to, from, count); }

 private:
  struct Block {
    c10::DataPtr inner;
    Blocks* counted;
  };
  static void free(void* context) {
    std::unique_ptr<Block> const block(static_cast<Block*>(context));
    if (block->counted) --block->counted->now_;
  }
  std::size_t bytes_ = 0;
  std::atomic<int> now_ = 0, most_ = 0;
};

/// root { 12 units of 40 x 40 }; a unit's weight is saved for its backward.
constexpr int num_units = 12;
constexpr std::size_t unit_bytes = 40 * 40 * 4, root_bytes = 606 * 4;
struct TowerImpl : torch::nn::Module {
  TowerImpl() {
    w = register_parameter("w", torch::ones({606}));
    for (int i = 0; i < num_units; ++i)
      units.push_back(
          register_module("unit" + std::to_string(i), weft::nn::Linear(weft::nn::LinearOptions(40, 40).bias(false))));
  }
  at::Tensor forward(at::Tensor x) {
    x = x * w.mean();
    for (auto& unit : units) x = unit(x);
    return x;
  }
  at::Tensor w;
  std::vector<weft::nn::Linear> units;
};
TORCH_MODULE(Tower);

template <class Sharding, class... Options>
using Sharded = FSDP<Sharding, weft::WrapPolicy<weft::nn::Linear>, Bucket<1>, Options...>;

/// Script on one rank of two, or of so many.
template <class Strategy, class Script>
void on_towers(Script const& script, std::size_t bytes = unit_bytes, int world = 2) {
  CHECK(on_ranks<Strategy>(world, [&](Run<Strategy>& fabric) {
    auto& blocks = Blocks::of(bytes);
    auto [model, optimizer] = fabric.setup(Tower(), weft::SGD{.lr = 0.01});
    script(fabric, model, optimizer, blocks);
    return 1;
  }));
}

template <class Model>
at::Tensor loss_of(Model& model) {
  return model(at::ones({2, 40})).sum();
}

/// Memory that Gloo has worked on goes when its thread lets go of it: soon.
void expect_blocks(Blocks const& blocks, int expected, std::string const& when) {
  for (int wait = 0; wait < 200 && blocks.now() != expected; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  expect(blocks.now() == expected,
         std::to_string(expected) + " whole units " + when + ", not " + std::to_string(blocks.now()));
}

}  // namespace

TEST_CASE("MEM-01: nothing stays gathered after a step, an evaluation, a loss that is dropped, a save, an exception",
          "[shard][known]") {
  auto const script = [](auto& fabric, auto& model, auto& optimizer, Blocks& blocks) {
    int const at_rest = fabric.config().sharding.shard_parameters ? 0 : num_units;
    for (int round = 0; round < 3; ++round) {
      expect_blocks(blocks, at_rest, "at rest");
      fabric.backward(loss_of(model));
      optimizer.step();
      optimizer.zero_grad();
      expect_blocks(blocks, at_rest, "after a step");
      {
        at::NoGradGuard const no_grad;
        loss_of(model);
      }
      expect_blocks(blocks, at_rest, "after an evaluation");
      loss_of(model);
      expect_blocks(blocks, at_rest, "after a loss that nobody used");
      auto const path = std::filesystem::temp_directory_path() /
                        ("weft-memory-" + std::to_string(::getppid()) + ".safetensors");
      fabric.save_weights(path, model);
      fabric.barrier();
      if (fabric.is_global_zero()) std::filesystem::remove(path);
      expect_blocks(blocks, at_rest, "after a save");
    }
    message_of([&] { model(at::ones({2, 39})); });
    fabric.backward(loss_of(model));
    optimizer.zero_grad();
    expect_blocks(blocks, at_rest, "after an exception and a step");
  };
  on_towers<Sharded<FullShard>>(script);
  on_towers<Sharded<ShardGradOp>>(script);
  on_towers<Sharded<NoShard>>(script);
}

TEST_CASE("MEM-02: the root is whole from its forward to the end of backward, and gathered once a step",
          "[shard][known]") {
  auto const script = [](auto& fabric, auto& model, auto&, Blocks& blocks) {
    for (int step = 0; step < 2; ++step) {
      fabric.recorder().start();
      expect_blocks(blocks, 0, "(the root) at rest");
      auto const loss = loss_of(model);
      expect_blocks(blocks, 1, "(the root) after forward");
      fabric.backward(loss);
      expect_blocks(blocks, 0, "(the root) after backward");
      int gathers = 0;
      for (auto const& event : fabric.recorder().stop())
        gathers += event.kind == weft::comm::Kind::all_gather && event.bytes == root_bytes;
      expect(gathers == 1, "one gather of the root");
    }
  };
  on_towers<Sharded<FullShard>>(script, root_bytes);
  on_towers<Sharded<ShardGradOp>>(script, root_bytes);
}

TEST_CASE("MEM-03: between forward and backward the memory is free, although autograd saved the weights",
          "[shard][known]") {
  auto const script = [](auto& fabric, auto& model, auto&, Blocks& blocks) {
    for (int step = 0; step < 2; ++step) {
      auto const loss = loss_of(model);
      auto const& sharding = fabric.config().sharding;
      expect_blocks(blocks, sharding.reshard_after_forward ? 0 : num_units, "between forward and backward");
      fabric.backward(loss);
      for (auto& parameter : model.parameters()) parameter.mutable_grad().reset();
    }
  };
  on_towers<Sharded<FullShard>>(script);
  on_towers<Sharded<ShardGradOp>>(script);
}

TEST_CASE("MEM-04: a unit and the ones gathered ahead are whole, no more; in backward their gradients besides",
          "[shard][known]") {
  auto const most = [](int whole, int in_flight) {
    return [=](auto& fabric, auto& model, auto& optimizer, Blocks& blocks) {
      for (int step = 0; step < 3; ++step) {
        expect_blocks(blocks, 0, "at rest");
        blocks.reset();
        auto const loss = loss_of(model);
        // The first step knows no order yet, so nothing is gathered ahead.
        expect(blocks.most() == (step == 0 ? 1 : whole), std::to_string(whole) + " whole units at most in forward " +
                                                             std::to_string(step) + ", not " +
                                                             std::to_string(blocks.most()));
        blocks.reset();
        fabric.backward(loss);
        // Gradients on their way to the other ranks, the ones that arrive, and one that autograd has just made.
        expect(blocks.most() <= whole + in_flight + 1 + 1,
               "few whole units in backward, not " + std::to_string(blocks.most()));
        optimizer.step();
        optimizer.zero_grad();
      }
    };
  };
  on_towers<Sharded<FullShard>>(most(2, 2));
  on_towers<Sharded<FullShard, weft::Prefetch<3>, weft::RateLimit<4>>>(most(4, 4));
  on_towers<Sharded<FullShard, weft::Prefetch<3>>>(most(2, 2));
  on_towers<Sharded<FullShard, weft::RateLimit<1>>>(most(1, 1));
}

TEST_CASE("MEM-05: without synchronization gradients are kept whole; AccumulateSharded keeps parts", "[shard][known]") {
  auto const script = [](int whole) {
    return [=](auto& fabric, auto& model, auto& optimizer, Blocks& blocks) {
      int const at_rest = fabric.config().sharding.shard_parameters ? 0 : num_units;
      for (int step = 0; step < 2; ++step) {
        for (int micro = 0; micro < 2; ++micro) {
          auto const guard = fabric.no_backward_sync(model);
          fabric.backward(loss_of(model));
          expect_blocks(blocks, at_rest + whole, "of gradients without synchronization");
        }
        fabric.backward(loss_of(model));
        // NoShard's gradients are as large as its parameters.
        expect_blocks(blocks, 2 * at_rest, "of gradients after the synchronized pass");
        optimizer.step();
        optimizer.zero_grad();
        expect_blocks(blocks, at_rest, "after zero_grad");
      }
    };
  };
  on_towers<Sharded<FullShard>>(script(num_units));
  on_towers<Sharded<ShardGradOp>>(script(num_units));
  on_towers<Sharded<FullShard, AccumulateSharded>>(script(0));
  on_towers<Sharded<ShardGradOp, AccumulateSharded>>(script(0));
}

TEST_CASE("MEM-06: one rank holds a copy of parameters and gradients, and no other", "[shard][known]") {
  auto const script = [](auto& fabric, auto& model, auto& optimizer, Blocks& blocks) {
    for (int step = 0; step < 2; ++step) {
      for (bool sync : {false, true}) {
        auto const guard = fabric.no_backward_sync(model, !sync);
        blocks.reset();
        fabric.backward(loss_of(model));
        expect(blocks.most() <= 2 * num_units + (sync ? 1 : 0),
               "parameters, gradients, and the one that is added, not " + std::to_string(blocks.most()));
      }
      optimizer.step();
      optimizer.zero_grad();
      expect_blocks(blocks, num_units, "of parameters");
    }
  };
  on_towers<Sharded<FullShard>>(script, unit_bytes, 1);
  on_towers<Sharded<ShardGradOp>>(script, unit_bytes, 1);
  on_towers<Sharded<NoShard>>(script, unit_bytes, 1);
}

TEST_CASE("MEM-07: after backward a gradient is a part, as its parameter is", "[shard][known]") {
  auto const script = [](auto& fabric, auto& model, auto&, Blocks&) {
    fabric.backward(loss_of(model));
    std::size_t bytes = 0, whole = 0;
    for (auto const& row : model.table().rows()) {
      expect(row.tensor.grad().sizes() == row.tensor.sizes(), "a gradient like its parameter");
      bytes += row.tensor.grad().nbytes();
      whole += static_cast<std::size_t>(row.global_numel()) * 4;
    }
    expect(bytes == whole / (fabric.config().sharding.shard_parameters ? 2 : 1), "half of the whole");
  };
  on_towers<Sharded<FullShard>>(script);
  on_towers<Sharded<ShardGradOp>>(script);
  on_towers<Sharded<NoShard>>(script);
}
