// Overlap, measured on a clock that only this test turns: each collective takes a fixed time and they queue behind one
// another, each block takes a fixed time to compute. What the engine waits for is then a number, not a guess at the
// machine's mood.
#include "models.hpp"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

using namespace test;

namespace {

struct Clock {
  double now = 0;           // of the rank that computes
  double network_free = 0;  // when the last collective queued so far is done
  double per_call = 0, per_block = 0;
  int calls = 0;
  int blocks = 0;  // forwards of blocks; a backward counts twice

  void compute(int units) {
    now += units * per_block;
    blocks += units;
  }
};
Clock clock_;

/// Moves nothing: outputs hold this rank's own share. One rank of two.
class DelayedBackend final : public c10d::Backend {
 public:
  DelayedBackend() : Backend(0, 2) {}
  std::string const getBackendName() const override { return "delayed"; }
  using Work_ = c10::intrusive_ptr<c10d::Work>;
  Work_ _allgather_base(at::Tensor& output, at::Tensor& input, c10d::AllgatherOptions const&) override {
    for (auto& part : output.chunk(2)) part.copy_(input.view(-1));
    return queue();
  }
  Work_ _reduce_scatter_base(at::Tensor& output, at::Tensor& input, c10d::ReduceScatterOptions const&) override {
    output.copy_(input.chunk(2)[0]);
    return queue();
  }
  Work_ allreduce(std::vector<at::Tensor>&, c10d::AllreduceOptions const&) override { return queue(); }
  Work_ broadcast(std::vector<at::Tensor>&, c10d::BroadcastOptions const&) override { return queue(); }

 private:
  struct Delayed final : c10d::Work {
    explicit Delayed(double at) : done(at) {}
    bool isCompleted() override { return clock_.now >= done; }
    bool wait(std::chrono::milliseconds) override {
      clock_.now = std::max(clock_.now, done);
      return true;
    }
    double done;
  };
  static Work_ queue() {
    ++clock_.calls;
    clock_.network_free = std::max(clock_.network_free, clock_.now) + clock_.per_call;
    return c10::make_intrusive<Delayed>(clock_.network_free);
  }
};

struct Ticks : torch::autograd::Function<Ticks> {
  static at::Tensor forward(torch::autograd::AutogradContext*, at::Tensor const& x) {
    clock_.compute(1);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    clock_.compute(2);
    return gradients;
  }
};

struct TickingImpl : torch::nn::Module {
  TickingImpl() { inner = register_module("inner", torch::nn::Linear(4, 4)); }
  at::Tensor forward(at::Tensor const& x) { return inner(Ticks::apply(x)); }
  torch::nn::Linear inner = nullptr;
};
WEFT_MODULE(Ticking);

struct TowerImpl : torch::nn::Module {
  TowerImpl() {
    in = register_module("in", torch::nn::Linear(4, 4));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 16; ++i) blocks->push_back(Ticking());
  }
  at::Tensor forward(at::Tensor const& x) {
    auto h = in(x);
    for (auto const& block : *blocks) h = block->as<Ticking>()->forward(h);
    return h;
  }
  torch::nn::Linear in = nullptr;
  torch::nn::ModuleList blocks = nullptr;
};
TORCH_MODULE(Tower);

weft::Model<Tower> sharded(weft::FsdpConfig const& config) {
  auto state = std::make_shared<weft::model::ModelState>();
  Tower tower;
  state->module = tower.ptr();
  state->session = std::make_shared<weft::comm::Session>();
  state->session->ranks = {.global_rank = 0, .world_size = 2};
  state->session->alone = true;
  state->session->world = std::make_shared<weft::comm::Communicator>(
      c10::make_intrusive<DelayedBackend>(), c10d::ProcessGroup::BackendType::CUSTOM,
      c10::make_intrusive<c10d::HashStore>(), state->session->recorder, "world", at::kCPU);
  state->table = weft::model::ParameterTable::of(*state->module);
  using Wrap = weft::core::TypeList<weft::WrapPolicy<Ticking>>;
  state->session->mesh.emplace(0, 2);
  state->session->connect_mesh();
  state->engine = weft::shard::shard_model(*state->module, state->table, config, weft::shard::wrapping_of(Wrap{}),
                                           {*state->session, {}, {"world"}});
  return {tower, state};
}

}  // namespace

TEST_CASE("collectives overlap with computation: a step takes the longer of both, not their sum", "[shard]") {
  auto const mode = GENERATE(weft::FullShard::config, weft::ShardGradOp::config, weft::NoShard::config);
  auto const [per_call, per_block] = GENERATE(table<double, double>({{1, 1}, {1, 4}, {4, 1}, {1, 0.7}, {1, 1.4}}));
  INFO("reshard " << mode.reshard_after_forward << ", cut " << mode.shard_parameters << ", " << per_call
                  << " ms a call, " << per_block << " ms a block");
  auto model = sharded({.sharding = mode, .bucket_bytes = 0});
  for (int step = 0; step < 3; ++step) {
    clock_ = {.per_call = per_call, .per_block = per_block};
    auto const longer = [&, &per_block = per_block, &per_call = per_call](int blocks, int calls) {
      return std::max(blocks * per_block, calls * per_call);
    };
    auto const loss = model(torch::ones({1, 4})).sum();
    int const calls_forward = clock_.calls;
    loss.backward();
    for (auto const& parameter : model.parameters()) parameter.mutable_grad().reset();
    CHECK(clock_.blocks == 48);
    INFO("step " << step << ": " << clock_.now << " ms; computing " << clock_.blocks * per_block << ", " << clock_.calls
                 << " calls, " << calls_forward << " of them in forward");
    // The proof would be worth nothing if the clock did not see waiting.
    CHECK(clock_.now >= longer(48, clock_.calls));
    if (step == 0) continue;  // records the order
    // Backward's reductions have nothing in forward to overlap with, so the bound is one of each phase; where both
    // phases have the same proportions, as under FullShard, that is the bound of the step.
    CHECK(clock_.now <= 1.15 * (longer(16, calls_forward) + longer(32, clock_.calls - calls_forward)));
    if (mode == weft::FullShard::config) CHECK(clock_.now <= 1.15 * longer(48, clock_.calls));
  }
}

TEST_CASE("without prefetching a step takes the sum: the clock sees what overlap saves", "[shard]") {
  auto model = sharded({.sharding = weft::FullShard::config, .prefetch = 0, .rate_limit = 1, .bucket_bytes = 0});
  for (int step = 0; step < 2; ++step) {
    clock_ = {.per_call = 1, .per_block = 1};
    model(torch::ones({1, 4})).sum().backward();
  }
  CHECK(clock_.now > 1.4 * std::max(clock_.blocks, clock_.calls));
}
