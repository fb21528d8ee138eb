#include "models.hpp"

#include <algorithm>
#include <filesystem>

#include <unistd.h>

#include <weft/nn/layers.hpp>
#include <weft/nn/linear.hpp>
#include <weft/nn/normalization.hpp>
#include <weft/report/allocator.hpp>

using namespace test;

namespace {

/// Weights drawn twice, a table that nobody registers, buffers, weights tied inside a unit, a frozen one, one of
/// another dtype.
struct LateImpl : torch::nn::Module {
  explicit LateImpl(int64_t num_blocks = 3) : table(torch::arange(7).to(at::kFloat) / 7) {
    stack = register_module("stack", Stack(num_blocks));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    scale = register_parameter("scale", torch::randn({3}) * 0.1 + 1);
    frozen = register_parameter("frozen", torch::randn({3}), /*requires_grad=*/false);
    torch::NoGradGuard const no_grad;
    for (auto& parameter : stack->parameters())
      if (parameter.dim() > 1) torch::nn::init::xavier_normal_(parameter);
    stack->out->weight.mul_(0.5);
  }
  at::Tensor forward(at::Tensor const& x) { return norm(stack(x)) * scale + frozen + table.sum(); }
  Stack stack = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  at::Tensor scale, frozen, table;
};
TORCH_MODULE(Late);

template <class Strategy>
void check_bit_identical(int world) {
  INFO(weft::name_of<Strategy>() << ", world " << world);
  on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
    fabric.seed_everything(3);
    auto eager = fabric.setup(Late());
    auto const drawn_after = at::rand({3});
    fabric.seed_everything(3);
    auto deferred = fabric.setup(fabric.template init_module<Late>());
    expect(at::equal(at::rand({3}), drawn_after), "the generator goes on as after eager construction");
    expect(deferred.init_report().early_reads.empty() && deferred.init_report().uninitialized.empty(),
           "nothing was read early, all is initialized");
    expect(deferred.init_report().deferred_bytes > 0, "something was deferred");
    auto const rows = eager.table().rows();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      expect(at::equal(rows[i].tensor, deferred.parameters().at(i)),
             rows[i].name + " is what eager construction makes it");
      expect(deferred.table().rows()[i].placements == rows[i].placements,
             rows[i].name + " lies where it does after eager construction");
    }
    for (auto const& buffer : eager->named_buffers())
      expect(at::equal(buffer.value(), deferred->named_buffers()[buffer.key()]), buffer.key() + " is equal");
    auto const x = at::randn({4, 5});
    expect(at::equal(eager(x), deferred(x)), "forward is equal");
    auto const want = whole_weights(fabric, eager), got = whole_weights(fabric, deferred);
    for (std::size_t i = 0; i < want.size(); ++i) expect(at::equal(want[i], got[i]), "whole weights are equal");
  });
}

using Wrap = weft::WrapPolicy<Block>;
using Groups = weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", weft::Infer>>;

TEST_CASE("deferred and eager construction are bit-identical under each strategy", "[shard][deferred]") {
  check_bit_identical<weft::SingleDevice>(1);
  for (int const world : {1, 2, 3, 4}) {
    check_bit_identical<weft::DDP<>>(world);
    check_bit_identical<weft::FSDP<weft::FullShard, Wrap>>(world);
    check_bit_identical<weft::FSDP<weft::ShardGradOp, Wrap>>(world);
    check_bit_identical<weft::FSDP<weft::NoShard, Wrap>>(world);
    if (world % 2 == 0) check_bit_identical<weft::FSDP<weft::HybridShard, Wrap, Groups>>(world);
  }
}

/// Wide enough that what is small beside a parameter is small: 6 x 256 KiB, and drawn twice.
struct WideImpl : torch::nn::Module {
  WideImpl() {
    for (int i = 0; i < 6; ++i)
      register_module("l" + std::to_string(i), weft::nn::Linear(torch::nn::LinearOptions(256, 256).bias(false)));
    torch::NoGradGuard const no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.02);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto const& child : children())
      x = torch::tanh(std::dynamic_pointer_cast<weft::nn::Linear::Impl>(child)->forward(x));
    return x;
  }
};
TORCH_MODULE(Wide);

/// What setup holds at most beside what it leaves, in parameters; of all ranks the most.
template <class Strategy>
double parameters_beside(int world) {
  return on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
    weft::report::MemoryCount const memory;
    auto const model = fabric.setup(fabric.template init_module<Wide>());
    auto const held = memory.all();
    return fabric.all_reduce(static_cast<double>(held.peak_bytes - held.bytes) / (256 << 10), weft::ReduceOp::max);
  });
}

TEST_CASE("setup of a deferred module holds one parameter beside what the strategy keeps", "[shard][deferred]") {
  double const small = 0.2;  // the generator's states, names and hashes that ranks compare
  for (int const world : {1, 2, 3, 4}) {
    INFO("world " << world);
    CHECK(parameters_beside<weft::FSDP<weft::FullShard, weft::WrapPolicy<weft::nn::Linear>>>(world) < 1 + small);
    CHECK(parameters_beside<weft::FSDP<weft::NoShard, weft::WrapPolicy<weft::nn::Linear>>>(world) < 1 + small);
    CHECK(parameters_beside<weft::DDP<>>(world) < 1 + small);
  }
  CHECK(parameters_beside<weft::FSDP<weft::HybridShard, weft::WrapPolicy<weft::nn::Linear>, Groups>>(4) < 1 + small);
  CHECK(parameters_beside<weft::SingleDevice>(1) < small);
}

template <class Strategy>
void check_rank_zero_wins(int world) {
  INFO(weft::name_of<Strategy>() << ", world " << world);
  auto const run = [&](int ranks, auto seed_of) {
    return on_ranks<Strategy>(ranks, [seed_of](Run<Strategy>& fabric) {
      fabric.seed_everything(static_cast<std::uint64_t>(seed_of(fabric.global_rank())));
      auto model = fabric.setup(fabric.template init_module<Late>());
      auto weights = whole_weights(fabric, model);
      for (auto const& buffer : model->buffers()) weights.push_back(buffer.clone());
      std::vector<at::Tensor> gathered;
      for (auto const& weight : weights) gathered.push_back(fabric.all_gather(weight.detach()));
      return gathered;
    });
  };
  auto const alike = run(world, [](int) { return 11; }), unlike = run(world, [](int rank) { return 11 + rank; });
  for (std::size_t i = 0; i < alike.size(); ++i) CHECK(at::equal(alike[i], unlike[i]));
}

TEST_CASE("NUM-26: ranks that draw different values while parameters get memory hold rank 0's", "[shard][deferred]") {
  check_rank_zero_wins<weft::DDP<>>(3);
  check_rank_zero_wins<weft::FSDP<weft::FullShard, Wrap>>(3);
  check_rank_zero_wins<weft::FSDP<weft::HybridShard, Wrap, Groups>>(4);
}

/// Counts what its initialization is called for.
struct CountedImpl : torch::nn::Module {
  explicit CountedImpl(double value) {
    weight = register_parameter("weight", torch::empty({5}));
    torch::NoGradGuard const no_grad;
    weight.fill_(value).add_(1);
  }
  at::Tensor forward(at::Tensor const& x) { return x * weight; }
  at::Tensor weight;
};
WEFT_MODULE(Counted);
struct CountedParentImpl : torch::nn::Module {
  CountedParentImpl() {
    child = register_module("child", Counted(10));
    own = register_parameter("own", torch::empty({5}));
    torch::NoGradGuard const no_grad;
    own.fill_(20).add_(1);
    child->weight.add_(100);
  }
  at::Tensor forward(at::Tensor const& x) { return child(x) * own; }
  Counted child = nullptr;
  at::Tensor own;
};
TORCH_MODULE(CountedParent);

TEST_CASE("NUM-27: a parameter in a unit inside of another is initialized once, by what its constructors did",
          "[shard][deferred]") {
  using Strategy = weft::FSDP<weft::FullShard, weft::WrapPolicy<Counted>>;
  on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
    auto const model = fabric.setup(fabric.template init_module<CountedParent>());
    auto const weights = whole_weights(fabric, model);
    expect(at::equal(weights[0], at::full({5}, 21.0)), "the parent's");
    expect(at::equal(weights[1], at::full({5}, 111.0)), "the child's");
  });
}

TEST_CASE("ranks whose constructors did different things are told so", "[shard][deferred]") {
  using Strategy = weft::FSDP<weft::FullShard, Wrap>;
  auto const message = failure_on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
    weft::DeferredInit const scope;
    Stack stack;
    if (fabric.is_global_zero()) stack->in->bias.detach().zero_();
    auto const model = fabric.setup(stack);
  });
  CHECK_THAT(message,
             Catch::Matchers::ContainsSubstring("weft: setup: models differ between ranks: rank 0 has initialized by"));
}

template <class Strategy>
void check_loading(int world) {
  INFO(weft::name_of<Strategy>() << ", world " << world);
  auto const file = std::filesystem::temp_directory_path() /
                    ("weft-deferred-" + std::to_string(getpid()) + ".safetensors");
  on_ranks<Strategy>(world, [&](Run<Strategy>& fabric) {
    fabric.seed_everything(5);
    auto const trained = fabric.setup(Late());
    fabric.save_weights(file, trained);
    auto const before = at::rand({3});
    fabric.seed_everything(5);
    auto model = fabric.setup(fabric.template init_module<Late>(weft::Init{.empty = true}));
    auto const& names = model.init_report().uninitialized;
    expect(std::find(names.begin(), names.end(), "stack.in.weight") != names.end(), "a drawn weight is reported");
    expect(std::find(names.begin(), names.end(), "norm.weight") == names.end(), "a filled one is not");
    expect(at::equal(model->norm->running_var, at::ones({3})), "buffers have their values");
    expect(at::equal(model->table, at::arange(7).to(at::kFloat) / 7), "tables have theirs");
    fabric.load_weights(file, model);
    auto const want = whole_weights(fabric, trained), got = whole_weights(fabric, model);
    for (std::size_t i = 0; i < want.size(); ++i) expect(at::equal(want[i], got[i]), "weights are the file's");
  });
  std::filesystem::remove(file);
}

TEST_CASE("a model built empty is loaded, and says what else has no values", "[shard][deferred]") {
  check_loading<weft::SingleDevice>(1);
  check_loading<weft::DDP<>>(2);
  check_loading<weft::FSDP<weft::FullShard, Wrap>>(3);
}

TEST_CASE("a deferred model trains like an eager one", "[shard][deferred]") {
  using Strategy = weft::FSDP<weft::FullShard, Wrap>;
  on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
    auto const train = [&](auto module) {
      auto [model, optimizer] = fabric.setup(std::move(module), weft::AdamW{.lr = 1e-2});
      for (int step = 0; step < 3; ++step) {
        auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
        fabric.backward(model(at::randn({4, 5}, generator)).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      return whole_weights(fabric, model);
    };
    fabric.seed_everything(3);
    auto const want = train(Late());
    fabric.seed_everything(3);
    auto const got = train(fabric.template init_module<Late>());
    for (std::size_t i = 0; i < want.size(); ++i)
      expect(at::equal(want[i], got[i]), "weights are equal after three steps");
  });
}

}  // namespace
