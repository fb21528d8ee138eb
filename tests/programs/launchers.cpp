#include "test.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

#include <sys/wait.h>

using Catch::Matchers::ContainsSubstring;

namespace {

struct Ran {
  int exit_code;
  std::string out;
  double seconds;
};

/// Runs a shell command within a minute; what it says on stderr comes after what it prints.
Ran run(std::string const& command) {
  auto const start = std::chrono::steady_clock::now();
  std::FILE* pipe = ::popen(("exec timeout -k 1 60 " + command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string out;
  char buffer[4096];
  while (auto const count = std::fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, count);
  int const status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), out, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}
bool is_there(std::string const& program) { return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0; }

std::string const program = std::string(WEFT_BUILD_DIR) + "/examples/03_launchers ";

/// Processes of the program that are left, whoever their parent is. One that has ended, and that nobody has asked after, is not.
int left_over() {
  int count = 0;
  for (int wait = 0; wait < 20; ++wait) {
    count = 0;
    std::error_code ignored;
    for (std::filesystem::directory_iterator it("/proc", ignored), end; it != end; it.increment(ignored)) {
      std::string number, name, state;
      std::ifstream(it->path() / "stat") >> number >> name >> state;
      count += name == "(03_launchers)" && state != "Z";
    }
    if (count == 0) return 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return count;
}

/// How to start `ranks` ranks, or nothing if the launcher is not on this machine.
std::string starter(std::string const& launcher, int ranks) {
  auto const n = std::to_string(ranks);
  if (launcher == "fork" || launcher == "popen") return program + launcher + " " + n;
  if (launcher == "popen --straight") return program + "popen " + n + " --straight";
  if (launcher == "mpirun") return is_there("mpirun") ? "mpirun --allow-run-as-root --oversubscribe -n " + n + " " + program + "join" : "";
  char const* const python = std::getenv("WEFT_PEER_PYTHON");
  return python ? std::string(python) + " -m torch.distributed.run --nproc-per-node " + n + " --no-python " + program + "join" : "";
}

}  // namespace

TEST_CASE("one job under each launcher", "[launch][launchers]") {
  auto const launcher = GENERATE(as<std::string>{}, "fork", "popen", "popen --straight", "mpirun", "torchrun");
  for (int ranks : {1, 2, 4}) {
    auto const start = starter(launcher, ranks);
    if (start.empty()) SKIP(launcher << " is not on this machine");
    INFO(start);
    auto const ran = run(start);
    INFO(ran.out);
    CHECK(ran.exit_code == 0);
    CHECK_THAT(ran.out, ContainsSubstring(std::to_string(ranks) + " ranks, sum of ranks " + std::to_string(ranks * (ranks - 1) / 2) + ", attempt 0"));
    CHECK(left_over() == 0);
  }
}

TEST_CASE("LCH-01: under each launcher a rank that fails ends all of them, is named, and leaves no process", "[launch][launchers][known]") {
  auto const launcher = GENERATE(as<std::string>{}, "fork", "popen", "popen --straight", "mpirun", "torchrun");
  struct Case {
    std::string kind, named;
  };
  // Under mpirun and torchrun a rank that dies without a word is named by them, in words of their own.
  auto const fails = GENERATE(values<Case>({{"throw", "out of coffee"}, {"exit", "exited with code 3"}, {"kill", "signal 9"}, {"segv", "signal 11"}, {"stuck", "all_reduce"}, {"absent", "all_reduce"}}));
  auto start = starter(launcher, 4);
  if (start.empty()) SKIP(launcher << " is not on this machine");
  bool const waits = fails.kind == "stuck" || fails.kind == "absent";
  bool const by_us = launcher.starts_with("fork") || launcher.starts_with("popen");
  start += " --fail " + fails.kind + " --rank 2";
  if (waits) start += " --limit 3";
  INFO(start);
  auto const ran = run(start);
  INFO(ran.out);
  CHECK(ran.exit_code != 0);
  CHECK(ran.seconds < (launcher == "torchrun" ? 20 : 10) + (waits ? 3 : 0));
  if (waits)
    CHECK_THAT(ran.out, ContainsSubstring("barrier on axis world"));  // the call that waited
  else if (by_us || fails.kind == "throw")
    CHECK_THAT(ran.out, ContainsSubstring("rank 2") && ContainsSubstring(fails.named));
  CHECK(left_over() == 0);
}

TEST_CASE("a job is started again as often as it may, and told which attempt it is", "[launch][launchers]") {
  auto const launcher = GENERATE(as<std::string>{}, "fork", "popen", "popen --straight");
  auto const ran = run(starter(launcher, 3) + " --fail kill --rank 1 --restarts 2");
  INFO(ran.out);
  CHECK(ran.exit_code == 0);
  CHECK_THAT(ran.out, ContainsSubstring("starting all ranks again (restart 1 of 2)") && ContainsSubstring("3 ranks, sum of ranks 3, attempt 1"));
  auto const torchrun = starter("torchrun", 2);
  if (torchrun.empty()) SKIP("torchrun is not on this machine");
  auto const elastic = run("bash -c 'cmd=\"" + torchrun + "\"; exec ${cmd/--no-python/--max-restarts 1 --no-python} --fail kill --rank 1 --restarts 1'");
  INFO(elastic.out);
  CHECK(elastic.exit_code == 0);
  CHECK_THAT(elastic.out, ContainsSubstring("2 ranks, sum of ranks 1, attempt 1"));
}

TEST_CASE("SIGTERM and SIGINT to the program that started ranks end all of them", "[launch][launchers]") {
  auto const launcher = GENERATE(as<std::string>{}, "fork", "popen", "popen --straight");
  auto const signal = GENERATE(as<std::string>{}, "TERM", "INT");
  auto const ran = run("bash -c 'set -m; " + starter(launcher, 3) + " --fail absent --rank 1 & sleep 2; kill -" + signal + " $!; wait $!'");
  INFO(ran.out);
  CHECK(ran.exit_code == 128 + (signal == "TERM" ? SIGTERM : SIGINT));
  CHECK_THAT(ran.out, ContainsSubstring("interrupted by signal"));
  CHECK(ran.seconds < 12);
  CHECK(left_over() == 0);
}
