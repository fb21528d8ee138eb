// host_time.cpp -- what a sharded step costs the host, with collectives that return at once. Prints, as lines of JSON
// like peers/peer_host.py's: step times of the model alone and under FSDP, in turns, and the difference a unit.
//
// run: --model tiny --steps 3
// expect: "fake_world":4096
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <CLI/CLI.hpp>

#include <weft/launch/simulated.hpp>
#include <weft/weft.hpp>

#include "../examples/formula.hpp"

namespace {

struct Options {
  std::string model = "deep";
  int64_t steps = 30, warmup = 5, batch = 1;
};

double seconds(std::function<void()> const& run) {
  auto const start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Times {
  std::vector<double> all;
  double least() const { return *std::min_element(all.begin(), all.end()); }
  double median() {
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
    return all[all.size() / 2];
  }
};

/// A unit a bucket, as the peer has it.
template <std::size_t World, std::size_t BucketBytes>
void measure(Options const& o) {
  using Run =
      weft::Fabric<weft::FSDP<weft::FullShard, weft::WrapPolicy<llama::TransformerBlock>, weft::Bucket<BucketBytes>>,
                   weft::On<weft::Cpu>, weft::Simulated<World>>;
  auto const outcome = Run::launch([&](Run& fabric) {
    at::set_num_threads(1);
    at::globalContext().setFlushDenormal(
        true);  // simulated weights mean nothing; arithmetic on denormals would be counted as the host's
    auto const& shape = formula::shapes().at(o.model);
    llama::LanguageModel plain(shape), module(shape);
    formula::initialize(*plain, 0);
    formula::initialize(*module, 0);
    torch::optim::SGD plain_optimizer(plain->parameters(), 0.01);
    auto [model, optimizer] = fabric.setup(module, weft::SGD{.lr = 0.01});
    auto const [inputs, targets] = formula::tokens(0, o.batch, shape, 0);
    auto const plain_step = [&, &inputs = inputs, &targets = targets] {
      llama::loss_of(plain(inputs), targets).backward();
      plain_optimizer.step();
      plain_optimizer.zero_grad();
    };
    auto const step = [&, &model = model, &inputs = inputs, &targets = targets, &optimizer = optimizer] {
      fabric.backward(llama::loss_of(model(inputs), targets));
      optimizer.step();
      optimizer.zero_grad();
    };
    Times alone, sharded;
    for (int64_t k = 0; k < o.warmup + o.steps; ++k) {
      double const a = seconds(plain_step), b = seconds(step);
      if (k < o.warmup) continue;
      alone.all.push_back(a);
      sharded.all.push_back(b);
    }
    auto const units = static_cast<double>(shape.layers + 1);
    std::printf(
        "{\"type\":\"host\",\"model\":\"%s\",\"strategy\":\"weft-fsdp\",\"bucket_bytes\":%zu,\"fake_world\":%zu,"
        "\"units\":%.0f,\"plain_min_s\":%.6g,\"wrapped_min_s\":%.6g,"
        "\"plain_step_s\":%.6g,\"wrapped_step_s\":%.6g,\"overhead_us_per_unit\":%.2f,\"overhead_min_us_per_unit\":%.2f}"
        "\n",
        o.model.c_str(), BucketBytes, World, units, alone.least(), sharded.least(), alone.median(), sharded.median(),
        (sharded.median() - alone.median()) * 1e6 / units, (sharded.least() - alone.least()) * 1e6 / units);
  });
  if (!outcome) std::exit(outcome.exit_code());
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Host time of sharded steps on a group that moves nothing");
  app.add_option("--model", o.model)->capture_default_str();
  app.add_option("--steps", o.steps)->capture_default_str();
  app.add_option("--warmup", o.warmup)->capture_default_str();
  app.add_option("--batch", o.batch)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  measure<8, 1>(o);
  measure<4096, 1>(o);
  measure<8, weft::defaults::shard_bucket_bytes>(o);
}
