#include "ranks.hpp"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <weft/launch/processes.hpp>
#include <weft/launch/rendezvous.hpp>

using Catch::Matchers::ContainsSubstring;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

using Joined = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>, weft::Environment>;

std::string contents(fs::path const& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}
std::size_t count(std::string const& text, std::string const& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// Processes of one node that somebody started, with the numbers that somebody gave them.
struct Environment {
  std::vector<int> numbers;
  int world = 4;
  bool with_port = true;  // torchrun's variables; else Open MPI's, whose ranks meet by a file

  fs::path folder = [] {
    auto name = (fs::temp_directory_path() / "weft-environment-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    return fs::path(name);
  }();
  double seconds = 0;

  /// What `function(process)` returned in each.
  template <class Function>
  std::vector<std::string> run(Function const& function) {
    auto const port = std::to_string(weft::launch::ListeningSocket().port());
    auto const start = std::chrono::steady_clock::now();
    auto const result = weft::launch::Processes(static_cast<int>(numbers.size()), 5s)
                            .run(
                                [&](int process) {
                                  weft::launch::inside_launched_function() = false;
                                  // A reporter of Catch2's may have taken std::cerr.
                                  static std::ofstream errors(folder / "errors", std::ios::app);
                                  std::cerr.rdbuf(errors.rdbuf());
                                  auto const number = std::to_string(numbers[static_cast<std::size_t>(process)]),
                                             size = std::to_string(world);
                                  std::string const mpi = "OMPI_COMM_WORLD_";
                                  if (with_port)
                                    set({{"RANK", number},
                                         {"WORLD_SIZE", size},
                                         {"LOCAL_RANK", number},
                                         {"LOCAL_WORLD_SIZE", size},
                                         {"MASTER_ADDR", "127.0.0.1"},
                                         {"MASTER_PORT", port}});
                                  else
                                    set({{mpi + "RANK", number},
                                         {mpi + "SIZE", size},
                                         {mpi + "LOCAL_RANK", number},
                                         {mpi + "LOCAL_SIZE", size},
                                         {"PMIX_NAMESPACE", port}});
                                  std::ofstream(folder / std::to_string(process)) << function(process);
                                  return std::string();
                                },
                                [] {});
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (auto const& failure : result.failures) UNSCOPED_INFO(failure.message);
    CHECK(result.failures.empty());
    std::vector<std::string> said;
    for (std::size_t process = 0; process < numbers.size(); ++process)
      said.push_back(contents(folder / std::to_string(process)));
    return said;
  }
  std::string errors() const { return contents(folder / "errors"); }
  ~Environment() {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }

  static void set(std::vector<std::pair<std::string, std::string>> const& variables) {
    for (auto const& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }
  /// Until another process has made this file.
  bool sees(std::string const& name) const {
    for (int i = 0; i < 1000 && !fs::exists(folder / name); ++i) std::this_thread::sleep_for(10ms);
    return fs::exists(folder / name);
  }
  void show(std::string const& name) const { std::ofstream(folder / name) << "here"; }
};

std::string sum_of_ones(Joined& fabric) {
  return std::to_string(fabric.all_reduce(1, weft::ReduceOp::sum)) + " of " + std::to_string(fabric.world_size());
}
std::string said(weft::Outcome<std::string>& outcome) {
  return outcome ? *outcome : outcome.failures().front().message;
}

}  // namespace

TEST_CASE("NEW-15: numbers that came twice are named within seconds on all ranks, with their hosts",
          "[launch][known]") {
  struct Case {
    std::vector<int> numbers;
    std::vector<std::string> parts;
    std::string heads;
  };
  auto const numbered = GENERATE(
      Case{{0, 1, 1, 2}, {"of 4 ranks rank 1 came twice, from ", "; rank 3 did not come"}, "ranks 0-2 of 4"},
      Case{{0, 0, 0, 0}, {"of 4 ranks rank 0 came 4 times, from ", "; ranks 1-3 did not come"}, "rank 0 of 4"},
      Case{{0, 1, 0, 1},
           {"of 4 ranks rank 0 came twice, from ", ", rank 1 came twice, from ", "; ranks 2, 3 did not come"},
           "ranks 0, 1 of 4"});
  bool const with_port = GENERATE(true, false);
  Environment processes{.numbers = numbered.numbers, .with_port = with_port};
  auto const messages = processes.run([](int) {
    auto outcome = Joined::launch({.collective_timeout = 60s, .rendezvous_timeout = 60s}, sum_of_ones);
    return said(outcome);
  });
  INFO(processes.errors());
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  for (auto const& message : messages) {
    for (auto const& part : numbered.parts) CHECK_THAT(message, ContainsSubstring(part));
    CHECK_THAT(message, ContainsSubstring(std::string("from ") + host + " (process "));
    CHECK_THAT(message, ContainsSubstring("give each process a rank of its own"));
  }
  CHECK(processes.seconds < 10);
  // And it is one sentence for all (NEW-24).
  CHECK_THAT(processes.errors(), ContainsSubstring("weft: " + numbered.heads + " failed: "));
  CHECK(count(processes.errors(), "give each process a rank of its own") == 1);
}

TEST_CASE("NEW-15: a rank that comes to a job whose ranks are all here is refused, and that job goes on",
          "[launch][known]") {
  Environment processes{.numbers = {0, 1, 1, 0}, .world = 2};
  auto const messages = processes.run([&](int process) {
    if (process >= 2 && !processes.sees("running")) return std::string("the job does not run");
    auto outcome = Joined::launch({.collective_timeout = 30s, .rendezvous_timeout = 30s}, [&](Joined& fabric) {
      if (fabric.is_global_zero()) {
        processes.show("running");
        if (!processes.sees("2 is refused") || !processes.sees("3 is refused"))
          return std::string("nobody was refused");
      }
      return sum_of_ones(fabric);
    });
    if (!outcome) processes.show(std::to_string(process) + " is refused");
    return said(outcome);
  });
  INFO(processes.errors());
  CHECK(messages[0] == "2 of 2");
  CHECK(messages[1] == "2 of 2");
  CHECK_THAT(messages[2], ContainsSubstring("the store of a job whose ranks have all come") &&
                              ContainsSubstring("choose a free MASTER_PORT"));
  CHECK_THAT(messages[3],
             ContainsSubstring("rank 0 can't serve the store on 127.0.0.1") && ContainsSubstring("choose a free port"));
}

TEST_CASE("NEW-24: a mistake that all ranks of an outer launcher make is printed once, others as often as they differ",
          "[launch][known]") {
  Environment processes{.numbers = {0, 1, 2, 3}};
  auto const messages = processes.run([](int) {
    auto outcome = Joined::launch({.collective_timeout = 30s, .rendezvous_timeout = 30s},
                                  [](Joined& fabric) -> std::string {
                                    fabric.barrier();
                                    if (fabric.global_rank() == 2) throw std::runtime_error("out of tea");
                                    throw std::runtime_error("out of coffee");
                                  });
    return said(outcome);
  });
  INFO(processes.errors());
  for (int rank : {0, 1, 2, 3})
    CHECK(messages[static_cast<std::size_t>(rank)] ==
          "weft: rank " + std::to_string(rank) + " failed: out of " + (rank == 2 ? "tea" : "coffee"));
  CHECK(count(processes.errors(), "weft: ranks 0, 1, 3 of 4 failed: out of coffee") == 1);
  CHECK(count(processes.errors(), "weft: rank 2 of 4 failed: out of tea") == 1);
  CHECK(count(processes.errors(), "out of") == 2);
}

TEST_CASE("NEW-09: launching twice on one port, while models of the first launch live on", "[launch][known]") {
  int const world = GENERATE(1, 2, 5);
  auto const kept_by = GENERATE(as<std::string>{}, "nobody", "all", "rank 0 for a while");
  INFO(world << " ranks, kept by " << kept_by);
  std::vector<int> numbers;
  for (int rank = 0; rank < world; ++rank) numbers.push_back(rank);
  Environment processes{.numbers = numbers, .world = world};
  auto const messages = processes.run([&](int process) {
    using Model = decltype(std::declval<Joined&>().setup(torch::nn::Linear(2, 2)));
    std::optional<Model> kept;
    std::string sums;
    for (int round = 0; round < 3; ++round) {
      auto outcome = Joined::launch({.collective_timeout = 20s, .rendezvous_timeout = 20s}, [&](Joined& fabric) {
        auto model = fabric.setup(torch::nn::Linear(2, 2));
        if (kept_by == "all" || (kept_by != "nobody" && process == 0)) kept = model;
        return sum_of_ones(fabric);
      });
      sums += said(outcome) + "; ";
      if (process != 0 || kept_by == "all") continue;
      std::this_thread::sleep_for(200ms);  // the others are at the next launch
      kept.reset();
    }
    return sums;
  });
  INFO(processes.errors());
  auto const n = std::to_string(world), one = n + " of " + n + "; ";
  for (auto const& message : messages) CHECK(message == one + one + one);
  CHECK(processes.seconds < 15);
}
