#include <unistd.h>

#include <filesystem>

#include <weft/checkpoints/safetensors.hpp>

#include "pieces.hpp"

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::FSDP, weft::FullShard, weft::ShardGradOp, weft::NoShard, weft::Bucket, weft::WrapPolicy;

namespace {

using Blocks = WrapPolicy<Block>;
template <class Function>
void for_each_sharding(Function const& f) {
  for_each_strategy<FSDP<FullShard, Blocks, Bucket<1>>, FSDP<FullShard, Blocks>, FSDP<ShardGradOp, Blocks>,
                    FSDP<NoShard, Blocks>>(f);
}

/// A file of this test's own, gone at its end.
struct File {
  explicit File(std::string const& name)
      : path(std::filesystem::temp_directory_path() /
             ("weft-" + name + "-" + std::to_string(::getpid()) + ".safetensors")) {}
  ~File() { std::filesystem::remove(path); }
  std::filesystem::path path;
};

template <class Model>
at::Tensor loss_of(Model& model) {
  return model(at::ones({2, 5})).pow(2).mean();
}

}  // namespace

TEST_CASE(
    "summon_full_params shows rank 0's values whole; what is written into a sharded model goes when the scope ends, or "
    "stays with writeback",
    "[shard]") {
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    for (int world : {1, 2, 3})
      CHECK(on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
        bool const is_cut = fabric.config().sharding.shard_parameters && fabric.world_size() > 1;
        Stack module;
        std::vector<at::Tensor> before;
        for (auto const& parameter : module->parameters())
          before.push_back(fabric.broadcast(parameter.detach().clone()));
        auto model = fabric.setup(module);
        auto const same = [&](std::string const& when) {
          auto const whole = whole_weights(fabric, model);
          for (std::size_t i = 0; i < before.size(); ++i) expect(whole[i].equal(before[i]), when);
        };
        same("as constructed");
        auto const fill = [&](double value, bool writeback) {
          auto const scope = fabric.summon_full_params(model, writeback);
          at::NoGradGuard const no_grad;
          for (auto& parameter : model.parameters()) parameter.fill_(value);
        };
        fill(2, false);
        if (!is_cut)
          for (auto& tensor : before) tensor.fill_(2);
        same("without writeback");
        fill(3, true);
        for (auto& tensor : before) tensor.fill_(3);
        same("with writeback");
        // The values that forward sees, also where a whole is kept from before.
        auto const loss = loss_of(model);
        fill(0.5, true);
        expect(loss_of(model).template item<double>() != loss.template item<double>(), "new values");
        return 1;
      }));
  });
}

TEST_CASE("writeback under an exception keeps nothing, and the model goes on", "[shard]") {
  using Strategy = FSDP<FullShard, Blocks>;
  CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
    auto model = fabric.setup(Stack());
    auto const before = whole_weights(fabric, model);
    auto const message = message_of([&] {
      auto const scope = fabric.summon_full_params(model, true);
      at::NoGradGuard const no_grad;
      for (auto& parameter : model.parameters()) parameter.zero_();
      throw std::runtime_error("stumbled");
    });
    expect(message == "stumbled", "the exception");
    auto const after = whole_weights(fabric, model);
    for (std::size_t i = 0; i < before.size(); ++i) expect(after[i].equal(before[i]), "as before");
    fabric.backward(loss_of(model));
    return 1;
  }));
}

TEST_CASE("one scope at a time, and no call of the model in it", "[shard]") {
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
      auto [model, optimizer] = fabric.setup(Stack(), weft::SGD{.lr = 0.1});
      {
        auto const scope = fabric.summon_full_params(model);
        expect(contains(message_of([&, &model = model] { auto const inner = fabric.summon_full_params(model); }),
                        "summon_full_params inside of another"),
               "a refusal");
        expect(contains(message_of([&, &model = model] { loss_of(model); }), "was called under summon_full_params"),
               "a refusal");
        expect(
            contains(message_of([&, &model = model] { fabric.save_weights("/nowhere", model); }), "inside of another"),
            "a refusal");
      }
      fabric.backward(loss_of(model));  // the refusals left nothing behind
      optimizer.step();
      return 1;
    }));
  });
}

TEST_CASE("a summons that fails on all ranks leaves no scope behind", "[shard]") {
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    if (!Strategy::config.sharding.shard_parameters) return;  // nothing to gather
    auto const outcome = Run<Strategy>::launch({.devices = 2, .check_collectives = true}, [](Run<Strategy>& fabric) {
      auto [model, optimizer] = fabric.setup(Stack(), weft::SGD{.lr = 0.1});
      auto const before = whole_weights(fabric, model);
      auto const message = message_of([&, &model = model] {
        if (fabric.global_rank() == 0)
          auto const scope = fabric.summon_full_params(model);
        else
          fabric.barrier();
      });
      expect(contains(message, "differs between its ranks"), "an error: " + message);
      auto const after = whole_weights(fabric, model);
      for (std::size_t i = 0; i < before.size(); ++i) expect(after[i].equal(before[i]), "whole");
      fabric.backward(loss_of(model));
      optimizer.step();
    });
    if (!outcome) FAIL(outcome.failures().front().message);
  });
}

TEST_CASE("between forward and backward parameters may be looked at whole, and backward is right", "[shard]") {
  for_each_sharding([]<class Strategy>(std::type_identity<Strategy>) {
    auto const gradients = [](bool look) {
      return on_ranks<Strategy>(2, [=](Run<Strategy>& fabric) {
        fabric.seed_everything(1);
        auto model = fabric.setup(Stack());
        auto const loss = loss_of(model);
        if (look) whole_weights(fabric, model);
        fabric.backward(loss);
        return unsharded_gradients(model);
      });
    };
    auto const looked = gradients(true), plain = gradients(false);
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(looked[i].equal(plain[i]));
  });
}

TEST_CASE("weights of any strategy load into any other, bit by bit", "[shard]") {
  File const from_ddp("ddp"), from_fsdp("fsdp"), back("back");
  auto const save = []<class Strategy>(std::type_identity<Strategy>, int world, std::filesystem::path const& load,
                                       std::filesystem::path const& save) {
    CHECK(on_ranks<Strategy>(world, [&](Run<Strategy>& fabric) {
      fabric.seed_everything(static_cast<std::uint64_t>(world));
      auto [model, optimizer] = fabric.setup(Stack(), weft::SGD{.lr = 0.1});
      if (load.empty()) {
        fabric.backward(loss_of(model));
        optimizer.step();
      } else {
        auto const report = fabric.load_weights(load, model);
        expect(report.loaded.size() == model.table().size() && report.missing.empty() && report.unexpected.empty(),
               "all names");
      }
      fabric.save_weights(save, model);
      return 1;
    }));
  };
  auto const same_files = [](std::filesystem::path const& a, std::filesystem::path const& b) {
    auto const one = weft::checkpoints::load_safetensors(a.string()),
               two = weft::checkpoints::load_safetensors(b.string());
    REQUIRE(one.size() == two.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      CHECK(one[i].first == two[i].first);
      CHECK(one[i].second.equal(two[i].second));
    }
  };
  save(std::type_identity<weft::DDP<>>(), 2, "", from_ddp.path);
  for_each_sharding([&]<class Strategy>(std::type_identity<Strategy> strategy) {
    for (int world : {1, 2, 3}) {
      save(strategy, world, from_ddp.path, from_fsdp.path);
      same_files(from_ddp.path, from_fsdp.path);
    }
  });
  save(std::type_identity<FSDP<FullShard, Blocks>>(), 3, "", from_fsdp.path);
  save(std::type_identity<weft::DDP<>>(), 2, from_fsdp.path, back.path);
  same_files(from_fsdp.path, back.path);
  save(std::type_identity<weft::SingleDevice>(), 1, from_fsdp.path, back.path);
  same_files(from_fsdp.path, back.path);
}

TEST_CASE("CKP-16: names in the file are the bare module's", "[shard][known]") {
  File const file("names");
  auto const names = on_ranks<FSDP<FullShard, Blocks>>(2, [&](Run<FSDP<FullShard, Blocks>>& fabric) {
    auto model = fabric.setup(Stack(1));
    fabric.save_weights(file.path, model);
    std::vector<std::string> names;
    for (auto const& parameter : Stack(1)->named_parameters()) names.push_back(parameter.key());
    return names;
  });
  auto const saved = weft::checkpoints::load_safetensors(file.path.string());
  REQUIRE(saved.size() == names.size());
  for (auto const& [name, tensor] : saved) CHECK(std::find(names.begin(), names.end(), name) != names.end());
}

TEST_CASE("a file that does not fit changes nothing, on any rank", "[shard]") {
  File const file("misfit");
  using Strategy = FSDP<FullShard, Blocks>;
  CHECK(on_ranks<Strategy>(2, [&](Run<Strategy>& fabric) {
    auto small = fabric.setup(Stack(1));
    fabric.save_weights(file.path, small);
    auto model = fabric.setup(Stack(2));
    auto const before = whole_weights(fabric, model);
    expect(contains(message_of([&] { fabric.load_weights(file.path, model); }), "missing from it: blocks.1."),
           "the names");
    expect(contains(message_of([&] { fabric.load_weights("/nowhere/at/all", model); }), "/nowhere/at/all"), "the file");
    auto const after = whole_weights(fabric, model);
    for (std::size_t i = 0; i < before.size(); ++i) expect(after[i].equal(before[i]), "as before");
    fabric.backward(loss_of(model));
    return 1;
  }));
}
