#include "test.hpp"

#include <weft/launch/popen.hpp>
#include <weft/launch/processes.hpp>
#include <weft/launch/run.hpp>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

using weft::launch::Processes;
using namespace std::chrono_literals;

namespace {

/// Children that this process still has, zombies included.
bool has_children() { return ::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD; }

struct Timed {
  Processes::Result result;
  double seconds;
};

Timed run(int ranks, Processes::Body const& body, std::chrono::milliseconds shutdown = 5s) {
  auto const start = std::chrono::steady_clock::now();
  auto result = Processes(ranks, shutdown).run(body, [] {});
  return {std::move(result), std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

/// Ends like a program that catches nothing: Catch2's handlers came along with the fork.
[[noreturn]] void die_by(int signal) {
  ::signal(signal, SIG_DFL);
  ::raise(signal);
  ::_exit(99);
}

[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

}  // namespace

TEST_CASE("rank 0's value arrives, also a large one", "[launch]") {
  for (int ranks : {1, 2, 3, 4}) {
    auto const [result, seconds] = run(
        ranks, [](int rank) { return std::string(rank == 0 ? 5'000'000 : 3, static_cast<char>('a' + rank)); });
    CHECK(result.failures.empty());
    CHECK(result.value == std::string(5'000'000, 'a'));
  }
  auto const [result, seconds] = run(2, [](int rank) { return std::string(rank == 0 ? 100'000'000 : 3, 'b'); });
  CHECK(result.value.size() == 100'000'000);
  CHECK(result.value.find_first_not_of('b') == std::string::npos);
  CHECK_FALSE(has_children());
}

TEST_CASE("LCH-01: failure propagation: one rank's end is everyone's, and it is named first", "[launch][known]") {
  struct Case {
    char const* name;
    void (*fail)();
    int exit_code;
    std::string message;
  };
  auto const end = GENERATE(
      Case{"throws", [] { throw std::runtime_error("out of coffee"); }, 1, "weft: rank 2 of 4 failed: out of coffee"},
      Case{"throws something else", [] { throw 7; }, 1,
           "weft: rank 2 of 4 failed: an exception that is not a std::exception"},
      Case{"exits", [] { ::_exit(3); }, 3, "weft: rank 2 of 4 exited with code 3 before its function returned"},
      Case{"exits with success", [] { ::_exit(0); }, 1,
           "weft: rank 2 of 4 exited with code 0 before its function returned"},
      Case{"is killed", [] { die_by(SIGKILL); }, 137, "weft: rank 2 of 4 was ended by signal 9 (Killed)"},
      Case{"is terminated", [] { die_by(SIGTERM); }, 143, "weft: rank 2 of 4 was ended by signal 15 (Terminated)"},
      Case{"crashes", [] { die_by(SIGSEGV); }, 139, "weft: rank 2 of 4 was ended by signal 11 (Segmentation fault)"},
      Case{"aborts", [] { die_by(SIGABRT); }, 134, "weft: rank 2 of 4 was ended by signal 6 (Aborted)"});
  INFO(end.name);
  auto const [result, seconds] = run(4, [&](int rank) -> std::string {
    if (rank == 2) end.fail();
    sleep_for_ever();
  });
  REQUIRE(result.failures.size() == 1);
  CHECK(result.failures[0].rank == 2);
  CHECK(result.failures[0].message == end.message);
  CHECK(result.failures[0].exit_code == end.exit_code);
  CHECK(seconds < 10);
  CHECK_FALSE(has_children());
}

TEST_CASE("a rank that lost its peer is not the one that failed first", "[launch]") {
  auto const [result, seconds] = run(3, [](int rank) -> std::string {
    if (rank == 0) throw std::runtime_error("Connection closed by peer [127.0.0.1]");
    ::usleep(300'000);
    if (rank == 2) throw std::runtime_error("the cause");
    sleep_for_ever();
  });
  REQUIRE(result.failures.size() == 2);
  CHECK(result.failures[0].rank == 2);
  CHECK(result.failures[1].rank == 0);
}

TEST_CASE("a rank that ignores SIGTERM is killed after the shutdown timeout", "[launch]") {
  auto const [result, seconds] = run(
      2,
      [](int rank) -> std::string {
        if (rank == 1) throw std::runtime_error("gone");
        ::signal(SIGTERM, SIG_IGN);
        sleep_for_ever();
      },
      500ms);
  REQUIRE(result.failures.size() == 1);
  CHECK(result.failures[0].rank == 1);
  CHECK(seconds < 5);
  CHECK_FALSE(has_children());
}

TEST_CASE("what a rank started itself ends with it", "[launch]") {
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  auto const [result, seconds] = run(2, [&](int rank) -> std::string {
    if (rank == 1) sleep_for_ever();
    if (pid_t const grandchild = ::fork(); grandchild == 0) {
      sleep_for_ever();
    } else {
      CHECK(::write(pipe_ends[1], &grandchild, sizeof grandchild) == sizeof grandchild);
    }
    throw std::runtime_error("gone");
  });
  pid_t grandchild = 0;
  REQUIRE(::read(pipe_ends[0], &grandchild, sizeof grandchild) == sizeof grandchild);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  for (int i = 0; i < 200 && ::kill(grandchild, 0) == 0; ++i) ::usleep(10'000);
  // An orphan's zombie may wait for init: gone, or no longer running.
  std::string state = "gone";
  if (std::FILE* status = std::fopen(("/proc/" + std::to_string(grandchild) + "/stat").c_str(), "r")) {
    char letter = '?';
    if (std::fscanf(status, "%*d (%*[^)]) %c", &letter) == 1) state = letter;
    std::fclose(status);
  }
  CHECK((state == "gone" || state == "Z"));
}

TEST_CASE("processes that a rank forks end for themselves: the rank's end is its own", "[launch]") {
  auto const in_child = [](auto const& act) {
    pid_t const child = ::fork();
    if (child == 0) act();
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(status != 0);
  };
  auto const [result, seconds] = run(1, [&](int) -> std::string {
    in_child([] {
      ::signal(SIGABRT, SIG_DFL);
      [] { throw std::runtime_error("nobody catches this"); }();
    });
    in_child([] {
      ::signal(SIGABRT, SIG_DFL);
      std::terminate();
    });
    return "value";
  });
  CHECK(result.failures.empty());
  CHECK(result.value == "value");
}

TEST_CASE("how ranks end is seen where SIGCHLD is ignored or handled, and ranks keep that", "[launch]") {
  for (auto const handler : {SIG_IGN, static_cast<sighandler_t>([](int) {
                               while (::waitpid(-1, nullptr, WNOHANG) > 0) {
                               }
                             })}) {
    auto const before = ::signal(SIGCHLD, handler);
    auto const [result, seconds] = run(2, [](int rank) -> std::string {
      if (rank == 1) ::_exit(3);
      sleep_for_ever();
    });
    auto const value = run(2, [handler](int) {
                         return std::string(::signal(SIGCHLD, SIG_DFL) == handler ? "kept" : "lost");
                       }).result.value;
    CHECK(::signal(SIGCHLD, before) == handler);
    REQUIRE(result.failures.size() == 1);
    CHECK(result.failures[0].message == "weft: rank 1 of 2 exited with code 3 before its function returned");
    CHECK(seconds < 10);
    CHECK(value == "kept");
  }
}

TEST_CASE("SIGINT to the parent ends all ranks", "[launch]") {
  auto const [result, seconds] = run(2, [](int rank) -> std::string {
    ::usleep(100'000);
    if (rank == 0) ::kill(::getppid(), SIGINT);
    sleep_for_ever();
  });
  REQUIRE(result.failures.size() == 1);
  CHECK(result.failures[0].exit_code == 130);
  CHECK(result.failures[0].message.find("interrupted by signal 2") != std::string::npos);
  CHECK(seconds < 10);
  CHECK_FALSE(has_children());
}

TEST_CASE("a signal that the parent ignores stays ignored, as under nohup", "[launch]") {
  auto const before = ::signal(SIGHUP, SIG_IGN);
  auto const [result, seconds] = run(2, [](int rank) {
    ::kill(::getpid(), SIGHUP);
    if (rank == 0) ::kill(::getppid(), SIGHUP);
    ::usleep(50'000);
    return std::string("still here");
  });
  ::signal(SIGHUP, before);
  CHECK(result.failures.empty());
  CHECK(result.value == "still here");
}

TEST_CASE("ranks end when the parent is killed", "[launch]") {
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  pid_t const parent = ::fork();
  if (parent == 0) {
    static_cast<void>(Processes(2, 5s).run(
        [&](int) -> std::string {
          pid_t const self = ::getpid();
          if (::write(pipe_ends[1], &self, sizeof self) != sizeof self) ::_exit(9);
          sleep_for_ever();
        },
        [] {}));
    ::_exit(0);
  }
  std::set<pid_t> ranks;
  for (int i = 0; i < 2; ++i) {
    pid_t rank = 0;
    REQUIRE(::read(pipe_ends[0], &rank, sizeof rank) == sizeof rank);
    ranks.insert(rank);
  }
  ::close(pipe_ends[1]);
  ::kill(parent, SIGKILL);
  REQUIRE(::waitpid(parent, nullptr, 0) == parent);
  char byte = 0;
  CHECK(::read(pipe_ends[0], &byte, 1) == 0);  // end of file: nobody holds the other end any more
  ::close(pipe_ends[0]);
}

TEST_CASE("50 kills at random moments leave no process and name the rank", "[launch]") {
  std::srand(7);
  for (int i = 0; i < 50; ++i) {
    int const delay_us = std::rand() % 5000;
    auto const [result, seconds] = run(3, [&](int rank) -> std::string {
      if (rank == 1) {
        ::usleep(static_cast<useconds_t>(delay_us));
        die_by(SIGKILL);
      }
      sleep_for_ever();
    });
    REQUIRE(result.failures.size() == 1);
    REQUIRE(result.failures[0].rank == 1);
    REQUIRE(seconds < 5);
    REQUIRE_FALSE(has_children());
  }
}

TEST_CASE("forking with more than one thread is refused", "[launch]") {
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop) std::this_thread::yield();
  });
  CHECK_THROWS_WITH(run(2, [](int) { return std::string(); }),
                    Catch::Matchers::ContainsSubstring("this process has 2 threads") &&
                        Catch::Matchers::ContainsSubstring("OMP_NUM_THREADS=1"));
  stop = true;
  other.join();
}

TEST_CASE("LCH-03: forking after CUDA was used is refused", "[launch][known]") {
  auto const folder = std::filesystem::temp_directory_path() / ("weft-descriptors-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::filesystem::create_symlink("/dev/nvidiactl", folder / "3");  // NVML's, too
  CHECK_NOTHROW(weft::launch::require_no_device("Fork", folder));
  std::filesystem::create_symlink("/dev/nvidia-uvm", folder / "4");
  CHECK_THROWS_WITH(weft::launch::require_no_device("Fork", folder),
                    Catch::Matchers::ContainsSubstring("Fork: CUDA is in use in this process") &&
                        Catch::Matchers::ContainsSubstring("write the launcher Popen"));
  std::filesystem::remove_all(folder);
  CHECK_NOTHROW(weft::launch::require_no_device("Fork"));
}

TEST_CASE(
    "LCH-04: forking after a backward works in one thread, and is refused with advice once OpenMP has its threads",
    "[launch][known]") {
  int const threads = GENERATE(1, 2);
  // In a process of its own: OpenMP's threads stay.
  auto const outer = Processes(1, 5s).run(
      [&](int) -> std::string {
        at::set_num_threads(threads);
        auto weight = at::ones({600, 600}).requires_grad_();
        (at::mm(weight, weight) + at::rand({600, 600})).sum().backward();
        try {
          auto const inner = Processes(2, 5s).run(
              [](int) {
                auto other = at::ones({300, 300}).requires_grad_();
                at::mm(other, other).sum().backward();
                return std::to_string(other.grad().sum().item<double>());
              },
              [] {});
          return inner.failures.empty() ? "trained: " + inner.value : inner.failures.front().message;
        } catch (weft::LaunchError const& error) {
          return error.what();
        }
      },
      [] {});
  REQUIRE(outer.failures.empty());
  if (threads == 1)
    CHECK(outer.value == "trained: 54000000.000000");
  else
    CHECK_THAT(outer.value, Catch::Matchers::ContainsSubstring("forked ranks could hang") &&
                                Catch::Matchers::ContainsSubstring("write the launcher Popen"));
}

TEST_CASE("LCH-07: what Popen tells a rank is for the rank, and does not stay in its environment", "[launch][known]") {
  auto const result = Processes(1, 5s).run(
      [](int) {
        weft::launch::PopenRank const told{2, 4, 4711, ::dup(STDERR_FILENO), ::getppid(), 3};
        ::setenv(weft::launch::PopenRank::variable, told.text().c_str(), 1);
        auto const rank = weft::launch::popen_rank();
        bool const gone = ::getenv(weft::launch::PopenRank::variable) == nullptr;
        return std::string(rank && rank->rank == 2 && rank->world_size == 4 && rank->port == 4711 &&
                                   rank->attempt == 3 && gone
                               ? "right"
                               : "wrong");
      },
      [] {});
  CHECK(result.value == "right");
}

TEST_CASE("NEW-07: ranks have the signal handlers that the program had, and get signals that are forwarded",
          "[launch][known]") {
  static volatile std::sig_atomic_t seen = 0;
  auto const before_user = ::signal(SIGUSR1, [](int signal) { seen = seen + signal; });
  auto const before_term = ::signal(SIGTERM, [](int signal) { seen = seen + signal; });
  auto outcome = Processes(2, 2s, {SIGUSR1, SIGTERM})
                     .run(
                         [](int rank) {
                           ::kill(::getpid(), SIGTERM);  // the program's own handler
                           if (seen != SIGTERM) return std::string("SIGTERM's handler is not the program's");
                           if (rank == 0) ::usleep(100'000), ::kill(::getppid(), SIGUSR1);
                           for (int i = 0; i < 500 && seen != SIGTERM + SIGUSR1; ++i) ::usleep(10'000);
                           if (seen != SIGTERM + SIGUSR1) return std::string("SIGUSR1 was not forwarded");
                           if (rank == 0) ::kill(::getppid(), SIGTERM);
                           for (int i = 0; i < 500 && seen != 2 * SIGTERM + SIGUSR1; ++i) ::usleep(10'000);
                           return std::string(seen == 2 * SIGTERM + SIGUSR1 ? "all" : "SIGTERM was not forwarded");
                         },
                         [] {});
  CHECK(outcome.failures.empty());
  CHECK(outcome.value == "all");
  ::signal(SIGUSR1, before_user);
  ::signal(SIGTERM, before_term);
  CHECK_FALSE(has_children());
}

TEST_CASE("NEW-24: a sentence that several ranks say is printed once", "[launch][known]") {
  auto const of = [](int rank, std::string const& text) {
    return weft::Failure{rank, "weft: rank " + std::to_string(rank) + " of 12 failed: " + text, 1};
  };
  using Sentences = std::vector<std::string>;
  CHECK(weft::launch::said_once({of(1, "no"), of(0, "no"), of(2, "no"), of(3, "other")}) ==
        Sentences{"weft: ranks 0-2 of 12 failed: no", "weft: rank 3 of 12 failed: other"});
  // Their own numbers do not make them different; another rank's does.
  CHECK(weft::launch::said_once({of(1, "rank 1 waits"), of(11, "rank 11 waits"), of(2, "rank 1 waits")}) ==
        Sentences{"weft: ranks 1, 11 of 12 failed: rank 1 waits", "weft: rank 2 of 12 failed: rank 1 waits"});
  CHECK(weft::launch::said_once({{-1, "weft: interrupted", 130}}) == Sentences{"weft: interrupted"});
}
