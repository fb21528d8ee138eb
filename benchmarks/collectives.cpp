// collectives.cpp -- seconds of weft's collectives on Gloo, and of starting ranks. Prints, as lines of JSON like
// peers/peer_coll.py's: the slowest rank's seconds of each call; with --first-only when the first call was done.
//
// run: --sizes 4096 --repeats 3
// expect: "kind":"send_receive"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>

#include <weft/weft.hpp>

namespace {

struct Options {
  int world = 2;
  std::vector<int64_t> sizes{4 << 10, 1 << 20, 16 << 20};  // bytes of the whole: gathered, not reduced yet
  int repeats = 15;
  bool first_only = false;
};

using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>>;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void measure(Run& fabric, Options const& o) {
  at::set_num_threads(1);
  auto& ranks = *fabric.world();
  int const rank = ranks.rank(), world = ranks.size();
  for (auto const size : o.sizes) {
    auto const n = std::max<int64_t>(1, size / 4 / world) * world;
    auto const whole = at::ones({n}), part = at::ones({n / world}), other = at::ones({n});
    auto const parts = rank == 0 ? whole.chunk(world) : std::vector<at::Tensor>();
    std::vector<std::pair<char const*, std::function<void()>>> const calls{
        {"all_reduce", [&] { ranks.all_reduce(whole); }},
        {"all_gather", [&] { ranks.all_gather_into(whole, part); }},
        {"reduce_scatter", [&] { ranks.reduce_scatter_into(part, whole); }},
        {"broadcast", [&] { ranks.broadcast(whole, 0); }},
        {"gather", [&] { ranks.gather_into(parts, part, 0); }},
        {"scatter", [&] { ranks.scatter_into(part, parts, 0); }},
        {"all_to_all", [&] { ranks.all_to_all_into(other, whole); }},
        {"send_receive",
         [&] {
           if (rank == 0) ranks.send(whole, 1);
           if (rank == 1) ranks.receive_into(whole, 0);
         }},
    };
    for (auto const& [kind, call] : calls) {
      std::vector<double> seconds;
      for (int k = -3; k < o.repeats; ++k) {
        ranks.barrier();
        auto const start = now();
        call();
        auto const slowest = at::full({1}, now() - start, at::kDouble);
        ranks.all_reduce(slowest, weft::ReduceOp::max);
        if (k >= 0) seconds.push_back(slowest.item<double>());
      }
      whole.fill_(1.0);
      std::sort(seconds.begin(), seconds.end());
      if (rank == 0)
        std::printf(
            "{\"type\":\"collective\",\"kind\":\"%s\",\"world\":%d,\"bytes\":%lld,\"min_s\":%.9f,\"median_s\":%.9f}\n",
            kind, world, static_cast<long long>(n * 4), seconds.front(), seconds[seconds.size() / 2]);
    }
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Seconds of weft's collectives on Gloo");
  app.add_option("--world", o.world)->capture_default_str();
  app.add_option("--sizes", o.sizes)->capture_default_str();
  app.add_option("--repeats", o.repeats)->capture_default_str();
  app.add_flag("--first-only", o.first_only, "say when the first all-reduce is done, and end");
  CLI11_PARSE(app, argc, argv);
  auto const outcome = Run::launch({.devices = o.world}, [&](Run& fabric) {
    if (!o.first_only) return measure(fabric, o);
    fabric.all_reduce(1.0);
    if (fabric.global_rank() == 0) {
      std::puts("first collective");
      std::fflush(stdout);
    }
  });
  return outcome.exit_code();
}
