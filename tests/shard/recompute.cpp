#include "models.hpp"
#include "same.hpp"

#include <filesystem>
#include <map>

#include <unistd.h>

#include <weft/activation/file_store.hpp>
#include <weft/launch/simulated.hpp>
#include <weft/report/allocator.hpp>

using namespace test;

namespace {

/// Units of sharding inside of one, dropout, an argument without gradient.
struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    first = register_module("first", Block());
    second = register_module("second", Block());
    scale = register_parameter("scale", at::full({3}, 0.9));
  }
  at::Tensor forward(at::Tensor const& x, at::Tensor const& mask) {
    auto const h = at::dropout(first(x) * scale.sum() * mask, 0.2, is_training());
    return (second(h).tanh() + first(h)).sigmoid();  // first twice
  }
  Block first = nullptr, second = nullptr;
  at::Tensor scale;
};
WEFT_MODULE(Layer);

enum class Around { nothing, unit, units, model };

struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(Around around = Around::nothing) : around(around) {
    in = register_module("in", torch::nn::Linear(5, 7));
    layers = {register_module("a", Layer()), register_module("b", Layer())};
    block = register_module("block", Block());
    out = register_module("out", torch::nn::Linear(7, 3));
  }
  at::Tensor forward(at::Tensor const& x) {
    auto const mask = at::ones({7});
    auto h = in(x);
    auto const both = [this, mask](at::Tensor t) {
      for (auto& layer : layers) t = layer(t, mask);
      return block(t).tanh();
    };
    if (around == Around::unit) {
      for (auto& layer : layers)
        h = weft::checkpoint([layer, mask](at::Tensor const& t) mutable { return layer(t, mask); }, h);
      h = block(h).tanh();
    } else {
      h = around == Around::units ? weft::checkpoint(both, h) : both(h);
    }
    return out(h);
  }
  Around around;
  torch::nn::Linear in = nullptr, out = nullptr;
  std::vector<Layer> layers;
  Block block = nullptr;
};
TORCH_MODULE(Deep);

/// Collectives of the third step, by kind and phase, and what it all came to.
struct Run3 {
  std::vector<at::Tensor> tensors;
  std::map<std::string, int> collectives;
};

template <class Strategy, class... Policies>
Run3 trained(int world, Around around = Around::nothing, std::filesystem::path const& folder = {}) {
  using Fabric = weft::Fabric<Strategy, weft::On<weft::Cpu>, Policies...>;
  auto outcome = Fabric::launch({.devices = world}, [&](Fabric& fabric) {
    if constexpr (Fabric::composition::offloads_activations)
      fabric.offload_activations_to(std::make_shared<weft::activation::FilesBelow>(folder));
    fabric.seed_everything(3 + static_cast<std::uint64_t>(fabric.global_rank()));
    auto [model, optimizer] = fabric.setup(Deep(around), weft::AdamW{.lr = 0.01});
    std::vector<at::Tensor> tensors;
    std::map<std::string, int> collectives;
    for (int step = 0; step < 3; ++step) {
      if (step == 2) fabric.recorder().start();
      for (bool const last : {false, true}) {
        auto const guard = fabric.no_backward_sync(model, !last);
        auto const x = at::randn({4, 5});
        auto const loss = around == Around::model
                              ? weft::checkpoint([&wrapped = model](at::Tensor const& t) { return wrapped(t).tanh(); },
                                                 x)
                              : model(x).tanh();
        fabric.backward(loss.pow(2).mean());
        tensors.push_back(loss.detach());
      }
      if (step == 2)
        for (auto const& event : fabric.recorder().stop())
          ++collectives[std::string(event.phase) + " " + std::string(name_of(event.kind))];
      fabric.clip_gradients(model, optimizer, weft::ClipNorm{0.1});
      optimizer.step();
      optimizer.zero_grad();
      at::NoGradGuard const no_grad;
      tensors.push_back(model(at::ones({2, 5})));
    }
    for (auto& weight : whole_weights(fabric, model)) tensors.push_back(std::move(weight));
    tensors.push_back(at::rand({2}));
    return std::pair(tensors, collectives);
  });
  if (!outcome) FAIL(outcome.failures().front().message);
  return {outcome->first, outcome->second};
}

void check_same(Run3 const& again, Run3 const& kept) { test::check_same(again.tensors, kept.tensors); }

int gathers(Run3 const& run) {
  int sum = 0;
  for (auto const& [name, count] : run.collectives)
    if (name.find("all_gather") != name.npos) sum += count;
  return sum;
}

using Blocks = weft::WrapPolicy<Block>;
using Layers = weft::WrapPolicy<Layer>;
using Both = weft::WrapPolicy<Layer, Block>;
using TwoGroups = weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", weft::Infer>>;
using weft::ActivationCheckpointing;
using weft::OffloadActivations;

/// Units that are recomputed are those that are sharded: the gather for backward serves the re-run.
template <class Strategy>
void compare(std::vector<int> const& worlds) {
  for (int const world : worlds) {
    INFO("world " << world);
    auto const kept = trained<Strategy>(world), again = trained<Strategy, ActivationCheckpointing<Layer>>(world);
    check_same(again, kept);
    CHECK(again.collectives == kept.collectives);
  }
}

}  // namespace

TEST_CASE("sharded units that are recomputed have the bits of kept ones, with the same collectives; worlds 1 to 4",
          "[shard][recompute]") {
  SECTION("full shard") { compare<weft::FSDP<weft::FullShard, Layers, weft::Bucket<1>>>({1, 2, 3, 4}); }
  SECTION("full shard, several units a bucket") { compare<weft::FSDP<weft::FullShard, Layers>>({2, 3}); }
  SECTION("full shard, prefetching three, at most two") {
    compare<weft::FSDP<weft::FullShard, Layers, weft::Bucket<1>, weft::Prefetch<3>, weft::RateLimit<2>>>({2});
  }
  SECTION("full shard, accumulating into shards") {
    compare<weft::FSDP<weft::FullShard, Layers, weft::Bucket<1>, weft::AccumulateSharded>>({2});
  }
  SECTION("shard-grad-op") { compare<weft::FSDP<weft::ShardGradOp, Layers, weft::Bucket<1>>>({1, 2, 3, 4}); }
  SECTION("no-shard") { compare<weft::FSDP<weft::NoShard, Layers>>({1, 2, 3}); }
  SECTION("hybrid") { compare<weft::FSDP<weft::HybridShard, Layers, TwoGroups, weft::Bucket<1>>>({2, 4}); }
  SECTION("hybrid shard-grad-op") {
    compare<weft::FSDP<weft::HybridShardGradOp, Layers, TwoGroups, weft::Bucket<1>>>({4});
  }
  SECTION("one unit") { compare<weft::FSDP<>>({2}); }
}

TEST_CASE("units of sharding inside of what is recomputed are gathered once more at most, for the same bits",
          "[shard][recompute]") {
  using Plain = weft::FSDP<weft::FullShard, Both, weft::Bucket<1>>;
  auto const kept = trained<Plain>(2);
  // Per step two passes; in each of the two layers two blocks, one of which runs twice.
  auto const once_more = [&](Run3 const& again, int num_units) {
    check_same(again, kept);
    CHECK(gathers(again) > gathers(kept));
    CHECK(gathers(again) <= gathers(kept) + 2 * num_units);
  };
  once_more(trained<Plain, ActivationCheckpointing<Layer>>(2), 2 * 3);
  once_more(trained<Plain, ActivationCheckpointing<Layer, Block>>(2), 2 * 3);
  auto const same = trained<Plain, ActivationCheckpointing<Block>>(2);
  check_same(same, kept);
  CHECK(same.collectives == kept.collectives);
  // Kept until backward anyway.
  using KeepsParameters = weft::FSDP<weft::ShardGradOp, Both, weft::Bucket<1>>;
  auto const kept_whole = trained<KeepsParameters>(3),
             again = trained<KeepsParameters, ActivationCheckpointing<Layer>>(3);
  check_same(again, kept_whole);
  CHECK(again.collectives == kept_whole.collectives);
}

TEST_CASE(
    "NUM-34: weft::checkpoint around a sharded unit, around several, around the whole model: the bits of the plain run",
    "[shard][recompute][known]") {
  auto const compare = []<class Strategy>(std::type_identity<Strategy>, std::vector<int> const& worlds) {
    for (int const world : worlds) {
      INFO("world " << world);
      auto const kept = trained<Strategy>(world);
      auto const unit = trained<Strategy>(world, Around::unit);
      check_same(unit, kept);
      check_same(trained<Strategy>(world, Around::units), kept);
      check_same(trained<Strategy>(world, Around::model), kept);
      // Both nestings at once.
      check_same(trained<Strategy, ActivationCheckpointing<Layer>>(world, Around::unit), kept);
      check_same(trained<Strategy, ActivationCheckpointing<Layer>>(world, Around::units), kept);
    }
  };
  SECTION("full shard") {
    compare(std::type_identity<weft::FSDP<weft::FullShard, Layers, weft::Bucket<1>>>{}, {1, 2, 3});
  }
  SECTION("full shard, units in units") {
    compare(std::type_identity<weft::FSDP<weft::FullShard, Both, weft::Bucket<1>>>{}, {2});
  }
  SECTION("shard-grad-op") {
    compare(std::type_identity<weft::FSDP<weft::ShardGradOp, Layers, weft::Bucket<1>>>{}, {2});
  }
  SECTION("no-shard") { compare(std::type_identity<weft::FSDP<weft::NoShard, Layers>>{}, {2}); }
  SECTION("DDP, a single device") {
    compare(std::type_identity<weft::DDP<>>{}, {2});
    compare(std::type_identity<weft::SingleDevice>{}, {1});
  }
}

TEST_CASE("activations of sharded units wait elsewhere: the same bits and collectives", "[shard][offload]") {
  auto const folder = std::filesystem::temp_directory_path() / ("weft_shard_offload_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  auto const compare = [&]<class Strategy>(std::type_identity<Strategy>, int world) {
    auto const kept = trained<Strategy>(world);
    auto const away = trained<Strategy, OffloadActivations<Layer>>(world, Around::nothing, folder);
    check_same(away, kept);
    CHECK(away.collectives == kept.collectives);
    check_same(
        trained<Strategy, OffloadActivations<Layer>, ActivationCheckpointing<Layer>>(world, Around::nothing, folder),
        kept);
    CHECK(std::filesystem::is_empty(folder));
  };
  compare(std::type_identity<weft::FSDP<weft::FullShard, Layers, weft::Bucket<1>>>{}, 2);
  compare(std::type_identity<weft::FSDP<weft::ShardGradOp, Both, weft::Bucket<1>>>{}, 3);
  compare(std::type_identity<weft::FSDP<weft::NoShard, Layers>>{}, 2);
  compare(std::type_identity<weft::DDP<>>{}, 2);
  compare(std::type_identity<weft::SingleDevice>{}, 1);
  std::filesystem::remove(folder);
}

TEST_CASE("CKP-16: names in the file are the bare module's with recomputation, too, and the file loads without it",
          "[shard][recompute][known]") {
  auto const path = std::filesystem::temp_directory_path() /
                    ("weft_recompute_" + std::to_string(::getpid()) + ".safetensors");
  using Sharded = weft::FSDP<weft::FullShard, Layers, weft::Bucket<1>>;
  auto const weights = [&]<class... Policies>(std::type_identity<weft::core::TypeList<Policies...>>, bool saves) {
    using Fabric = weft::Fabric<Sharded, weft::On<weft::Cpu>, Policies...>;
    auto outcome = Fabric::launch({.devices = 2}, [&](Fabric& fabric) {
      fabric.seed_everything(saves ? 1 : 2);
      auto const model = fabric.setup(Deep());
      saves ? fabric.save_weights(path, model)
            : static_cast<void>(fabric.load_weights(path, model));  // names must match
      return whole_weights(fabric, model);
    });
    if (!outcome) FAIL(outcome.failures().front().message);
    return std::move(*outcome);
  };
  std::type_identity<weft::core::TypeList<>> const without;
  std::type_identity<weft::core::TypeList<ActivationCheckpointing<Layer>>> const with;
  for (bool const saves_with : {true, false}) {
    auto const saved = saves_with ? weights(with, true) : weights(without, true),
               loaded = saves_with ? weights(without, false) : weights(with, false);
    REQUIRE(saved.size() == loaded.size());
    for (std::size_t i = 0; i < saved.size(); ++i) CHECK(saved[i].equal(loaded[i]));
  }
  std::filesystem::remove(path);
}

TEST_CASE("a model that is itself recomputed, and sharded inside", "[shard][recompute]") {
  auto const gradients = []<class... Policies>(std::type_identity<weft::core::TypeList<Policies...>>) {
    using Fabric = weft::Fabric<weft::FSDP<weft::FullShard, Blocks, weft::Bucket<1>>, weft::On<weft::Cpu>, Policies...>;
    auto outcome = Fabric::launch({.devices = 2}, [](Fabric& fabric) {
      fabric.seed_everything(3 + static_cast<std::uint64_t>(fabric.global_rank()));
      auto const model = fabric.setup(Layer());
      auto call = model;
      for (int pass = 0; pass < 2; ++pass) fabric.backward(call(at::randn({4, 7}), at::ones({7})).pow(2).mean());
      return unsharded_gradients(model);
    });
    if (!outcome) FAIL(outcome.failures().front().message);
    return std::move(*outcome);
  };
  auto const kept = gradients(std::type_identity<weft::core::TypeList<>>{}),
             again = gradients(std::type_identity<weft::core::TypeList<ActivationCheckpointing<Layer>>>{});
  REQUIRE(kept.size() == again.size());
  for (std::size_t i = 0; i < kept.size(); ++i) CHECK(again[i].equal(kept[i]));
}

TEST_CASE("an error in a re-run names the unit on its way through a sharded step, and the next step is right",
          "[shard][recompute]") {
  struct FickleImpl : torch::nn::Module {
    FickleImpl() { linear = register_module("linear", torch::nn::Linear(5, 5)); }
    at::Tensor forward(at::Tensor const& x) { return ++calls == 2 ? x + linear(x).detach() : linear(x).tanh(); }
    int calls = 0;
    torch::nn::Linear linear = nullptr;
  };
  using Fickle = weft::unit::Holder<FickleImpl>;
  using Fabric = weft::Fabric<weft::FSDP<weft::FullShard, weft::WrapPolicy<Fickle>>, weft::On<weft::Cpu>,
                              ActivationCheckpointing<Fickle>>;
  auto const outcome = Fabric::launch({.devices = 2}, [](Fabric& fabric) {
    fabric.seed_everything(1);
    Fickle fickle;
    auto const model = fabric.setup(torch::nn::Sequential(torch::nn::Linear(5, 5), fickle));
    auto call = model;
    auto const x = at::ones({2, 5});
    auto const message = message_of([&] { fabric.backward(call(x).sum()); });
    expect(contains(message, "unit 1 (") && contains(message, "forward saved 3 tensors for backward, its re-run 2"),
           "an error that names unit 1, not: " + message);
    fabric.backward(call(x).sum());
    expect(fickle->calls == 4, "a forward and a re-run for each pass");
    for (auto const& gradient : unsharded_gradients(model)) expect(gradient.defined(), "gradients after the error");
  });
  if (!outcome) FAIL(outcome.failures().front().message);
}

TEST_CASE("recomputation gathers no more at once than backward does without it", "[shard][recompute][memory]") {
  auto const peaks = []<class... Policies>(std::type_identity<weft::core::TypeList<Policies...>>) {
    using Fabric = weft::Fabric<weft::FSDP<weft::FullShard, Layers, weft::Bucket<1>>, weft::On<weft::Cpu>,
                                weft::Simulated<4>, Policies...>;
    auto outcome = Fabric::launch({.devices = 4}, [](Fabric& fabric) {
      weft::report::MemoryCount const memory;
      auto [model, optimizer] = fabric.setup(Deep(), weft::SGD{.lr = 0.01});
      memory.reset_peaks();
      for (int step = 0; step < 3; ++step) {
        fabric.backward(model(at::ones({4, 5})).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      using weft::report::MemoryTag;
      return std::vector<std::size_t>{memory.of(MemoryTag::gathered).peak_bytes, memory.of(MemoryTag::gathered).bytes,
                                      memory.of(MemoryTag::reduce).peak_bytes};
    });
    if (!outcome) FAIL(outcome.failures().front().message);
    return std::move(*outcome);
  };
  CHECK(peaks(std::type_identity<weft::core::TypeList<ActivationCheckpointing<Layer>>>{}) ==
        peaks(std::type_identity<weft::core::TypeList<>>{}));
}
