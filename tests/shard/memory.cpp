#include "models.hpp"

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include <weft/comm/autograd_node.hpp>
#include <weft/estimates/estimate.hpp>
#include <weft/estimates/shape_of.hpp>
#include <weft/launch/simulated.hpp>
#include <weft/nn/linear.hpp>
#include <weft/report/allocator.hpp>
#include <weft/report/memory_count.hpp>

using namespace test;
using weft::report::MemoryCount;
using weft::report::MemoryTag;

namespace {

/// As large as it is told to be, so that each window of neighbors has a size of its own.
struct SizedImpl : torch::nn::Module {
  explicit SizedImpl(int64_t hidden, bool trained = true) {
    up = register_module("up", torch::nn::Linear(8, hidden));
    down = register_module("down", torch::nn::Linear(hidden, 8));
    scale = register_parameter("scale", torch::ones({hidden}), trained);
  }
  at::Tensor forward(at::Tensor const& x) { return x + down(torch::tanh(up(x) * scale)); }
  torch::nn::Linear up = nullptr, down = nullptr;
  at::Tensor scale;
};
WEFT_MODULE(Sized);

/// Units inside of units, with parameters before and after them.
struct OuterImpl : torch::nn::Module {
  explicit OuterImpl(int64_t hidden) {
    before = register_module("before", torch::nn::Linear(8, 8));
    inner = register_module("inner", torch::nn::ModuleList(Sized(hidden), Sized(hidden + 9), Sized(hidden / 2)));
    after = register_module("after", torch::nn::Linear(8, 8));
  }
  at::Tensor forward(at::Tensor const& x) {
    auto h = before(x);
    for (auto const& block : *inner) h = block->as<Sized>()->forward(h);
    return after(h);
  }
  torch::nn::Linear before = nullptr, after = nullptr;
  torch::nn::ModuleList inner = nullptr;
};
WEFT_MODULE(Outer);

struct TowerImpl : torch::nn::Module {
  explicit TowerImpl(torch::nn::ModuleList list) : parts(std::move(list)) {
    in = register_module("in", torch::nn::Linear(5, 8));
    register_module("parts", parts);
    out = register_module("out", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(at::Tensor const& x) {
    auto h = in(x);
    for (auto const& part : *parts)
      h = part->as<Sized>() ? part->as<Sized>()->forward(h) : part->as<Outer>()->forward(h);
    return out(h);
  }
  torch::nn::Linear in = nullptr, out = nullptr;
  torch::nn::ModuleList parts = nullptr;
};
TORCH_MODULE(Tower);

auto const trained = [] {
  return Tower(
      torch::nn::ModuleList(Sized(40), Sized(11), Sized(64), Sized(90), Sized(33), Sized(70), Sized(5), Sized(12)));
};
auto const partly_frozen = [] {
  return Tower(torch::nn::ModuleList(Sized(40), Sized(11, false), Sized(64), Sized(90, false), Sized(33), Sized(70)));
};
auto const nested = [] { return Tower(torch::nn::ModuleList(Outer(20), Sized(61), Sized(9), Outer(44), Outer(10))); };

bool is_part(torch::nn::Module& module, std::string const&) {
  return dynamic_cast<SizedImpl*>(&module) || dynamic_cast<OuterImpl*>(&module);
}
template <class Sharding, class... Options>
using Sharded = weft::FSDP<Sharding, weft::WrapIf<is_part>, Options...>;

/// By tag; of all ranks the largest.
using Peaks = std::array<weft::report::Held, weft::core::num_memory_tags>;
weft::report::Held const& of(Peaks const& peaks, MemoryTag tag) { return peaks[static_cast<std::size_t>(tag)]; }

/// A backend's threads let go of their last tensors soon after whoever waits for them has been woken.
void settle(MemoryCount const& memory) {
  for (int i = 0; i < 200 && memory.of(MemoryTag::gradients).bytes + memory.of(MemoryTag::reduce).bytes > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

auto const nothing = [](auto&) {};
auto const train_step = [](auto& fabric, auto& model, auto& optimizer) {
  auto const generator = at::detail::createCPUGenerator(3);
  fabric.backward(model(at::randn({4, 5}, generator)).pow(2).mean());
  optimizer.step();
  optimizer.zero_grad();
};

/// A step whose collectives are those of the estimate.
auto counted_step(weft::Estimate const& expected) {
  return [expected](auto& fabric, auto& model, auto& optimizer) {
    fabric.recorder().start();
    train_step(fabric, model, optimizer);
    std::map<weft::comm::Kind, weft::comm::Sum> sums;
    for (auto const& event : fabric.recorder().stop())
      weft::estimates::add(sums[event.kind], event.kind, event.group_size, event.bytes);
    using enum weft::comm::Kind;
    for (auto const& [kind, sum] :
         std::initializer_list<std::pair<weft::comm::Kind, weft::comm::Sum>>{{all_gather, expected.all_gather},
                                                                             {reduce_scatter, expected.reduce_scatter},
                                                                             {all_reduce, expected.all_reduce}})
      expect(sums[kind].count == sum.count && sums[kind].bytes == sum.bytes,
             c10::str("the estimate of ", name_of(kind), ": ", sum.count, " of ", sum.bytes, " bytes, not ",
                      sums[kind].count, " of ", sums[kind].bytes));
  };
}

template <class Program, class Model, class Step, class Prepare>
Peaks peaks(int world, Model const& make, Step const& step, Prepare const& prepare) {
  auto outcome = Program::launch({.devices = world}, [&](Program& fabric) {
    prepare(fabric);
    fabric.seed_everything(1);
    MemoryCount const memory;
    auto [model, optimizer] = fabric.setup(make(), weft::AdamW{.lr = 1e-2});
    auto const built = static_cast<int64_t>(memory.of(MemoryTag::rest).bytes);
    memory.reset_peaks();
    for (int i = 0; i < 4; ++i) {
      step(fabric, model, optimizer);
      settle(memory);
    }
    Peaks counted;
    for (std::size_t tag = 0; tag < counted.size(); ++tag) counted[tag] = memory.of(static_cast<MemoryTag>(tag));
    auto numbers = at::zeros({static_cast<int64_t>(counted.size()), 4}, at::kLong);
    for (std::size_t tag = 0; tag < counted.size(); ++tag) {
      auto const& held = counted[tag];
      int64_t column = 0;
      for (auto const number : {held.bytes, held.blocks, held.peak_bytes, held.peak_blocks})
        numbers[static_cast<int64_t>(tag)][column++] = static_cast<int64_t>(number);
    }
    numbers[0][0] -= built;  // of the rest, what training has added
    numbers[0][2] -= built;
    if (fabric.world_size() > 1) numbers = fabric.all_reduce(numbers, weft::ReduceOp::max);
    return std::vector<std::size_t>(numbers.template data_ptr<int64_t>(),
                                    numbers.template data_ptr<int64_t>() + numbers.numel());
  });
  if (!outcome) FAIL(outcome.failures().front().message);
  Peaks found;
  for (std::size_t tag = 0; tag < found.size(); ++tag) {
    auto const* const number = &(*outcome)[4 * tag];
    found[tag] = {number[0], number[1], number[2], number[3]};
  }
  return found;
}

/// What one process holds beside parameters, states and gradients: each gradient goes as soon as it has come.
template <class Model>
std::size_t rest_of_one_process(Model const& make, bool keeps_gradients) {
  struct Drop final : torch::autograd::FunctionPostHook {
    explicit Drop(at::Tensor it) : parameter(std::move(it)) {}
    torch::autograd::variable_list operator()(torch::autograd::variable_list const& outputs,
                                              torch::autograd::variable_list const&) override {
      parameter.mutable_grad().reset();
      return outputs;
    }
    at::Tensor parameter;
  };
  using Program = weft::Fabric<weft::SingleDevice, weft::On<weft::Cpu>>;
  std::vector<weft::comm::NodePtr> hooked;
  auto const found = peaks<Program>(
      1, make,
      [&](auto& fabric, auto& model, auto& optimizer) {
        if (hooked.empty() && !keeps_gradients)
          for (auto const& parameter : model.parameters())
            if (parameter.requires_grad()) {
              hooked.push_back(torch::autograd::impl::grad_accumulator(parameter));
              hooked.back()->add_post_hook(std::make_unique<Drop>(parameter));
            }
        train_step(fabric, model, optimizer);
      },
      nothing);
  return of(found, MemoryTag::rest).peak_bytes;
}

struct Dtypes {
  std::size_t prefetch = 1, rate_limit = 2, bucket_bytes = 1;
};

/// Each rank's peaks by tag, and the bytes that a step sends, are the estimate's.
template <class Strategy, class Precision = weft::Fp32, class Model>
void check_memory(std::vector<int> const& worlds, Model const& make, std::vector<Dtypes> const& variants) {
  using Program = weft::Fabric<Strategy, Precision, weft::On<weft::Cpu>>;
  auto const shape = weft::shape_of<Program>(make(), 2);
  auto const rest = rest_of_one_process(make, false);
  for (int const world : worlds)
    for (auto const& numbers : variants) {
      INFO(weft::name_of<Strategy>() << ", world " << world << ", prefetch " << numbers.prefetch << ", limit "
                                     << numbers.rate_limit << ", bucket " << numbers.bucket_bytes);
      auto const choose = [&](weft::FsdpConfig& config) {
        config.prefetch = numbers.prefetch;
        config.rate_limit = numbers.rate_limit;
        config.bucket_bytes = numbers.bucket_bytes;
      };
      auto config = Strategy::config;
      choose(config);
      auto const spread = weft::estimates::spread_of(config,
                                                     weft::estimates::context_of<typename Program::composition>(world));
      auto const expected = weft::estimates::estimate_sharded(shape, config, spread, true, Precision::config);
      auto const found = peaks<Program>(world, make, counted_step(expected),
                                        [&](Program& fabric) { choose(fabric.config()); });

      CHECK(of(found, MemoryTag::parameters).peak_bytes == expected.parameter_bytes);
      CHECK(of(found, MemoryTag::optimizer).peak_bytes == expected.optimizer_bytes);
      CHECK(of(found, MemoryTag::gathered).peak_bytes == expected.gathered_peak_bytes);
      CHECK(of(found, MemoryTag::reduce).peak_bytes == expected.reduce_peak_bytes);
      if (world > 1 || Precision::config.computed != Precision::config.stored) {
        CHECK(of(found, MemoryTag::gradients).peak_bytes == expected.gradient_bytes);
        CHECK(static_cast<int64_t>(of(found, MemoryTag::rest).peak_bytes) <= static_cast<int64_t>(rest));
      } else if (std::is_same_v<Precision, weft::Fp32>) {  // gradients are autograd's own
        CHECK(of(found, MemoryTag::rest).peak_bytes == rest_of_one_process(make, true));
      }
      // Between steps.
      CHECK(of(found, MemoryTag::parameters).bytes == expected.parameter_bytes);
      CHECK(of(found, MemoryTag::optimizer).bytes == expected.optimizer_bytes);
      for (auto const tag : {MemoryTag::gathered, MemoryTag::gradients, MemoryTag::reduce}) {
        INFO(name_of(tag));
        CHECK(of(found, tag).bytes == 0);
      }
      CHECK(static_cast<int64_t>(of(found, MemoryTag::rest).bytes) <=
            0);  // below: setup's last broadcast was still held when counting began
    }
}

std::vector<Dtypes> const usual = {{}, {.prefetch = 2, .rate_limit = 3}, {.bucket_bytes = 1 << 20}};

}  // namespace

TEST_CASE("full shard holds what the estimate says, tag by tag", "[shard][memory]") {
  check_memory<Sharded<weft::FullShard>>({1, 2, 4}, trained, usual);
}
TEST_CASE("full shard, frozen parameters and nested units", "[shard][memory]") {
  check_memory<Sharded<weft::FullShard>>({2, 3}, partly_frozen,
                                         {{}, {.prefetch = 2, .rate_limit = 3, .bucket_bytes = 5000}});
  check_memory<Sharded<weft::FullShard>>({2, 3}, nested,
                                         {{},
                                          {.prefetch = 2, .rate_limit = 3},
                                          {.prefetch = 0},
                                          {.prefetch = 4, .rate_limit = 1},
                                          {.prefetch = 3, .rate_limit = 5}});
}
TEST_CASE("shard-grad-op holds what the estimate says", "[shard][memory]") {
  check_memory<Sharded<weft::ShardGradOp>>({1, 2, 4}, trained, usual);
}
TEST_CASE("no-shard holds what the estimate says", "[shard][memory]") {
  check_memory<Sharded<weft::NoShard>>({1, 2, 4}, trained, usual);
}
TEST_CASE("hybrid sharding holds what the estimate says", "[shard][memory]") {
  using Two = weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", weft::Infer>>;
  check_memory<Sharded<weft::HybridShard, Two>>({2, 4}, trained, usual);
}

TEST_CASE("in mixed dtypes: half of what is gathered, and what each width says of the rest",
          "[shard][memory][precision]") {
  using weft::Bf16, weft::Fp32;
  using InBf16 = weft::MixedPrecision<Bf16, Bf16, Fp32, Fp32>;
  std::vector<Dtypes> const wide{{.prefetch = 2, .rate_limit = 3}};
  check_memory<Sharded<weft::FullShard>, weft::Bf16Mixed>({1, 3}, trained, usual);
  check_memory<Sharded<weft::FullShard>, weft::Bf16Mixed>({2}, nested, wide);
  check_memory<Sharded<weft::FullShard>, InBf16>({4}, trained, wide);
  check_memory<Sharded<weft::FullShard>, InBf16>({3}, partly_frozen,
                                                 {{}, {.prefetch = 2, .rate_limit = 3, .bucket_bytes = 5000}});
  check_memory<Sharded<weft::FullShard>, Bf16>({2}, trained, usual);
  check_memory<Sharded<weft::NoShard>, InBf16>({1, 2}, nested, usual);
  using Two = weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", weft::Infer>>;
  check_memory<Sharded<weft::HybridShard, Two>, InBf16>({2, 4}, trained, wide);
}

TEST_CASE("never more than the root and 1 + n groups are whole", "[shard][memory]") {
  for (std::size_t const ahead : {0, 1, 2, 3}) {
    using Program = weft::Fabric<Sharded<weft::FullShard>, weft::On<weft::Cpu>>;
    auto const found = peaks<Program>(2, trained, train_step, [&](Program& fabric) {
      fabric.config().bucket_bytes = 1;
      fabric.config().prefetch = ahead;
      fabric.config().rate_limit = 10;
    });
    CHECK(of(found, MemoryTag::gathered).peak_blocks == 1 + 1 + ahead);
  }
}

TEST_CASE("a simulated rank holds what a real one holds", "[shard][memory][simulated]") {
  using Strategy = Sharded<weft::FullShard, weft::Bucket<1>>;
  auto const real = peaks<weft::Fabric<Strategy, weft::On<weft::Cpu>>>(4, trained, train_step, nothing);
  auto const simulated = peaks<weft::Fabric<Strategy, weft::On<weft::Cpu>, weft::Simulated<4>>>(4, trained, train_step,
                                                                                                nothing);
  for (std::size_t tag = 0; tag < real.size(); ++tag) {
    INFO(name_of(static_cast<MemoryTag>(tag)));
    CHECK(simulated[tag].peak_bytes == real[tag].peak_bytes);
    CHECK(simulated[tag].bytes == real[tag].bytes);
  }
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool is_sanitized = true;
#elif defined(__has_feature)
constexpr bool is_sanitized = __has_feature(address_sanitizer);
#else
constexpr bool is_sanitized = false;
#endif

TEST_CASE("a soak leaves memory, descriptors, threads and processes as they were", "[shard][memory][soak]") {
  using Program = weft::Fabric<Sharded<weft::FullShard>, weft::On<weft::Cpu>>;
  auto const children = [] {  // other tests may have left some on purpose
    std::string all;
    for (auto const& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream file(task.path() / "children");
      for (std::string child; file >> child;) all += child + " ";
    }
    return all;
  };
  auto const before = children();
  auto const outcome = Program::launch({.devices = 4}, [&children](Program& fabric) {
    fabric.config().bucket_bytes = 10000;
    MemoryCount const memory;
    auto [model, optimizer] = fabric.setup(trained(), weft::AdamW{.lr = 1e-3});
    auto const entries = [](char const* folder) {
      return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
    };
    struct Counts {
      std::size_t counted, resident;
      std::ptrdiff_t descriptors, threads;
    };
    auto const count = [&] {
      settle(memory);
      return Counts{memory.all().bytes, weft::report::resident_bytes(), entries("/proc/self/fd"),
                    entries("/proc/self/task")};
    };
    constexpr int num_steps = 1000, warm_up = 51;  // both after a step that synchronized
    Counts start{};
    for (int step = 0; step < num_steps; ++step) {
      if (step == warm_up) start = count();
      if (step % 3 != 1) {
        train_step(fabric, model, optimizer);
        continue;
      }
      auto const guard = fabric.no_backward_sync(model);
      fabric.backward(model(at::ones({4, 5})).pow(2).mean());
    }
    auto const end = count();
    expect(end.counted == start.counted, c10::str("counted bytes stay: ", start.counted, ", then ", end.counted));
    if (!is_sanitized)  // the address sanitizer keeps what was freed
      expect(end.resident < start.resident + (std::size_t{4} << 20),
             c10::str("resident bytes stay: ", start.resident, ", then ", end.resident));
    expect(end.descriptors == start.descriptors,
           c10::str("descriptors stay: ", start.descriptors, ", then ", end.descriptors));
    expect(end.threads == start.threads, c10::str("threads stay: ", start.threads, ", then ", end.threads));
    expect(children().empty(), "no process is left: " + children());
    return true;
  });
  if (!outcome) FAIL(outcome.failures().front().message);
  CHECK(children() == before);  // nor of the job itself
}
