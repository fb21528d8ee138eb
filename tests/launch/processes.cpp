#include "test.hpp"

#include <weft/launch/popen.hpp>
#include <weft/launch/processes.hpp>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

using weft::launch::Processes;
using namespace std::chrono_literals;

namespace {

// [Note: Catch2's signal handlers] While a test case runs, SIGTERM and SIGINT are Catch2's, and ranks have what their
// parent had: ended by SIGTERM, a rank would report a failed test case. So forked processes of this program have the
// defaults, but for what a test case itself has set. SIGFPE's handler is Catch2's.
[[maybe_unused]] int const without_handlers_of_catch2 = ::pthread_atfork(nullptr, nullptr, [] {
  struct sigaction catch2{}, now{};
  ::sigaction(SIGFPE, nullptr, &catch2);
  for (int const signal : {SIGTERM, SIGINT})
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == catch2.sa_handler) ::signal(signal, SIG_DFL);
});

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

namespace {

volatile std::sig_atomic_t signals_seen = 0;  // a bit for each
int bit_of(int signal) { return signal == SIGUSR1 ? 1 : signal == SIGUSR2 ? 2 : signal == SIGTERM ? 4 : 8; }
void note_signal(int signal) { signals_seen = signals_seen | bit_of(signal); }

/// A handler of the program, until the end of the test.
class Handler {
 public:
  explicit Handler(int signal) : signal_(signal) {
    struct sigaction action{};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, &before_);
  }
  ~Handler() { ::sigaction(signal_, &before_, nullptr); }
  Handler(Handler const&) = delete;
  Handler& operator=(Handler const&) = delete;

 private:
  int signal_;
  struct sigaction before_{};
};

std::string wait_for_signals(int bits) {
  for (int i = 0; i < 500 && signals_seen != bits; ++i) ::usleep(10'000);
  return std::to_string(signals_seen);
}

}  // namespace

TEST_CASE("NEW-07: forked ranks have the handlers and the mask that the program had before launch", "[launch][known]") {
  Handler const term(SIGTERM), interrupt(SIGINT), hangup(SIGHUP), user(SIGUSR1);
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR2);
  ::sigaddset(&blocked, SIGALRM);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  auto const [result, seconds] = run(2, [](int) {
    std::string lost;
    for (int const signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
      struct sigaction now{};
      ::sigaction(signal, nullptr, &now);
      if (now.sa_handler != note_signal || !(now.sa_flags & SA_RESTART)) lost += std::to_string(signal) + " ";
    }
    sigset_t mask;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    for (int const signal : {SIGUSR2, SIGALRM})
      if (!::sigismember(&mask, signal)) lost += "mask " + std::to_string(signal);
    if (::sigismember(&mask, SIGTERM)) lost += "SIGTERM is blocked";
    ::raise(SIGTERM);
    return lost.empty() ? wait_for_signals(4) : lost;
  });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  CHECK(result.failures.empty());
  CHECK(result.value == "4");
  CHECK(signals_seen == 0);
  struct sigaction now{};
  ::sigaction(SIGTERM, nullptr, &now);
  CHECK(now.sa_handler == note_signal);
}

TEST_CASE("NEW-07: signals that are to be forwarded reach every rank and do not end the job; the others do",
          "[launch][known]") {
  Handler const term(SIGTERM), one(SIGUSR1), two(SIGUSR2);
  bool const blocked = GENERATE(false, true);  // a program that takes its signals by sigwait has them blocked
  sigset_t set, before;
  ::sigemptyset(&set);
  if (blocked) ::sigaddset(&set, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &set, &before);
  auto const result = Processes(3, 5s, {SIGUSR1, SIGUSR2, SIGTERM})
                          .run(
                              [&](int rank) -> std::string {
                                ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
                                if (rank == 0)
                                  for (int const signal : {SIGUSR1, SIGUSR2, SIGTERM}) ::kill(::getppid(), signal);
                                auto const seen = wait_for_signals(7);
                                if (seen != "7") throw std::runtime_error("saw " + seen);
                                return seen;
                              },
                              [] {});
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (auto const& failure : result.failures) UNSCOPED_INFO(failure.message);
  CHECK(result.failures.empty());
  CHECK(result.value == "7");
  CHECK(signals_seen == 0);  // this process only hands them on

  auto const ended = Processes(2, 200ms, {SIGUSR1})
                         .run(
                             [](int rank) -> std::string {
                               if (rank == 0) ::kill(::getppid(), SIGTERM);
                               sleep_for_ever();
                             },
                             [] {});
  REQUIRE(ended.failures.size() == 1);
  CHECK(ended.failures[0].exit_code == 143);
}

TEST_CASE("NEW-24: failed ranks that say the same are one sentence", "[launch][known]") {
  using weft::launch::sentences;
  auto const of = [](std::vector<std::pair<int, std::string>> const& said, int world) {
    std::vector<weft::Failure> failures;
    for (auto const& [rank, text] : said)
      failures.push_back({rank, "weft: rank " + std::to_string(rank) + " of " + std::to_string(world) + text, 1});
    return sentences(failures, world);
  };
  using Texts = std::vector<std::string>;
  CHECK(of({{2, " failed: a"}}, 4) == Texts{"weft: rank 2 of 4 failed: a"});
  CHECK(of({{3, " failed: a"}, {0, " failed: a"}, {1, " failed: a"}, {2, " failed: a"}}, 4) ==
        Texts{"weft: ranks 0-3 of 4 failed: a"});
  CHECK(of({{3, " failed: a"}, {0, " failed: b"}, {1, " failed: a"}}, 4) ==
        Texts{"weft: ranks 1, 3 of 4 failed: a", "weft: rank 0 of 4 failed: b"});
  // What names the speaker alone is the speaker's place; what names others is said of them.
  CHECK(of({{0, " failed: weft: barrier, rank 0 of 11: no"}, {10, " failed: weft: barrier, rank 10 of 11: no"}}, 11) ==
        Texts{"weft: ranks 0, 10 of 11 failed: weft: barrier, ranks 0, 10 of 11: no"});
  CHECK(of({{0, " failed: rank 0 of 2 has 3, rank 1 of 2 has 4"}, {1, " failed: rank 0 of 2 has 3, rank 1 of 2 has 4"}},
           2) == Texts{"weft: ranks 0, 1 of 2 failed: rank 0 of 2 has 3, rank 1 of 2 has 4"});
  CHECK(of({{0, " failed: waits for rank 1 of 2"}, {1, " failed: waits for rank 0 of 2"}}, 2).size() == 2);
  CHECK(of({{1, " was ended by signal 11 (Segmentation fault)"}, {2, " was ended by signal 11 (Segmentation fault)"}},
           8) == Texts{"weft: ranks 1, 2 of 8 were ended by signal 11 (Segmentation fault)"});
  CHECK(of({{0, " exited with code 3 before its function returned"},
            {1, " exited with code 3 before its function returned"}},
           2) == Texts{"weft: ranks 0, 1 of 2 exited with code 3 before their functions returned"});
  CHECK(sentences({{-1, "weft: Fork: no rank was started", 1}}, 1) == Texts{"weft: Fork: no rank was started"});
  CHECK(weft::launch::names_of({0, 1, 2, 4, 5, 7}) == "ranks 0-2, 4, 5, 7");
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
