// exchanges.cpp -- weft's reduce-scatter and all-gather beside those of c10d's Gloo backend, call for call in one run.
// Prints a table: medians of the rounds' ratios and their range, for the fastest and for the median call of a round.
//
// run: --rounds 5
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <weft/comm/gloo.hpp>

namespace {

struct Round {
  double fastest_us = 0, median_us = 0;
};

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Calls of both kinds take turns, so that both see the same machine.
std::pair<Round, Round> round_of(c10d::Backend& ranks, int calls, std::function<void()> const& ours,
                                 std::function<void()> const& theirs) {
  std::vector<double> our_times, their_times;
  for (int call = -3; call < calls; ++call)
    for (auto const& [run, times] : {std::pair{&ours, &our_times}, std::pair{&theirs, &their_times}}) {
      ranks.barrier()->wait();
      auto const start = now_us();
      (*run)();
      if (call >= 0) times->push_back(now_us() - start);
    }
  auto const summary = [](std::vector<double>& times) {
    std::sort(times.begin(), times.end());
    return Round{times.front(), times[times.size() / 2]};
  };
  return {summary(our_times), summary(their_times)};
}

void print_row(char const* call, int world, std::size_t bytes, std::vector<std::pair<Round, Round>> const& rounds) {
  auto const ratio = [&](double Round::* figure) {
    std::vector<double> ratios;
    for (auto const& [ours, theirs] : rounds) ratios.push_back(ours.*figure / theirs.*figure);
    std::sort(ratios.begin(), ratios.end());
    char text[64];
    std::snprintf(text, sizeof text, "%.2f (%.2f to %.2f)", ratios[ratios.size() / 2], ratios.front(), ratios.back());
    return std::string(text);
  };
  auto const fastest = std::min_element(rounds.begin(), rounds.end(), [](auto const& a, auto const& b) {
    return a.first.fastest_us < b.first.fastest_us;
  });
  std::printf("| %s | %d | %zu KiB | %s | %s | %.0f |\n", call, world, bytes >> 10, ratio(&Round::fastest_us).c_str(),
              ratio(&Round::median_us).c_str(), fastest->first.fastest_us);
  std::fflush(stdout);
}

void measure(int rank, int world, std::string const& store_file, int num_rounds) {
  at::set_num_threads(1);
  c10::intrusive_ptr<c10d::Store> const store = c10::make_intrusive<c10d::FileStore>(store_file, world);
  auto const group_options = c10d::ProcessGroupGloo::Options::create();
  group_options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  auto const theirs = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("c10d", store),
                                                                  rank, world, group_options);
  auto const ours = weft::comm::BackendFactory<weft::Gloo>::create(
      {c10::make_intrusive<c10d::PrefixStore>("weft", store), rank, world, std::chrono::minutes(5), "127.0.0.1"});
  for (std::size_t const bytes : {std::size_t(64) << 10, std::size_t(1) << 20, std::size_t(16) << 20}) {
    auto whole = at::randn({static_cast<std::int64_t>(bytes / 4)});
    auto part = at::randn({whole.numel() / world});
    int const calls = bytes > (4 << 20) ? 20 : bytes > (256 << 10) ? 100 : 200;
    auto const row = [&](char const* call, std::function<void(c10d::Backend&)> const& run) {
      std::vector<std::pair<Round, Round>> rounds;
      for (int round = 0; round < num_rounds; ++round)
        rounds.push_back(round_of(*theirs, calls, [&] { run(*ours); }, [&] { run(*theirs); }));
      if (rank == 0) print_row(call, world, bytes, rounds);
    };
    row("reduce_scatter", [&](c10d::Backend& ranks) { ranks._reduce_scatter_base(part, whole)->wait(); });
    row("all_gather", [&](c10d::Backend& ranks) { ranks._allgather_base(whole, part)->wait(); });
  }
  theirs->barrier()->wait();
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 5;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--rounds" && i + 1 < argc) {
      rounds = std::atoi(argv[++i]);
    } else {
      std::printf("exchanges [--rounds N]\n");
      return std::string(argv[i]) == "--help" ? 0 : 2;
    }
  }
  std::printf(
      "| call | ranks | whole | fastest call over c10d's | median call over c10d's | weft's fastest, us "
      "|\n|---|---|---|---|---|---|\n");
  std::fflush(stdout);
  for (int const world : {2, 4}) {
    // A file and not a TCPStore: its server would be a thread of the process that forks.
    auto const store_file = std::filesystem::temp_directory_path() /
                            ("weft-exchanges-" + std::to_string(getpid()) + "-" + std::to_string(world));
    for (int rank = 0; rank < world; ++rank)
      if (fork() == 0) {
        try {
          measure(rank, world, store_file.string(), rounds);
        } catch (std::exception const& error) {
          std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
          _exit(1);
        }
        _exit(0);
      }
    int status = 0, failed = 0;
    while (wait(&status) > 0) failed |= status;
    std::filesystem::remove(store_file);
    if (failed != 0) return 1;
  }
}
