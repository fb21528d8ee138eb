// launch/processes.hpp -- ranks as child processes that end together.
// In: a function per rank, or a command. Out: rank 0's bytes, or each failed rank with its message; no process is left
// behind.
#pragma once

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/core/error.hpp>
#include <weft/launch/outcome.hpp>

namespace weft::inline v0::launch {

/// How the body of a rank ended, told to the parent through a pipe. A crash tells nothing: the pipe just closes.
enum class Ending : char { crashed, returned, threw, lost_peer };

struct RankReport {
  Ending ending = Ending::crashed;
  std::int64_t when_ns = 0;  // monotonic clock, one for all processes of a machine
  std::string text;          // the value's bytes, or the message
};

inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// True once per process tree branch: inside of a launched function.
[[gnu::visibility("default")]] inline bool& inside_launched_function() {
  static bool inside = false;
  return inside;
}

/// An exception that only says that somebody else is gone. The rank it names is not the one that failed first.
bool tells_of_lost_peer(std::exception const& error);

/// For a message: "rank 3", "ranks 0, 1", "ranks 0-7, 9", of ranks in ascending order.
std::string names_of(std::vector<int> const& ranks);

/// For a message: who neither failed nor came to the call in which others waited in vain.
std::string still_elsewhere(std::vector<int> const& ranks);

/// A failed rank's message as all ranks that failed alike have it: what names this rank alone is left open.
class CommonSentence {
 public:
  CommonSentence(std::string const& message, int rank, int num_ranks);
  /// Equal where ranks failed alike.
  std::string const& form() const { return form_; }
  /// The sentence for all of them.
  std::string of(std::vector<int> const& ranks) const;

 private:
  std::string form_;
  int num_ranks_;
};

/// What to print for failed ranks of a world: equal sentences once, "weft: ranks 0-7 of 8 failed: ...".
std::vector<std::string> sentences(std::vector<Failure> const& failures, int num_ranks);

/// A CUDA that is in use does not survive a fork. It holds its memory device open; NVML, which only counts devices,
/// does not.
void require_no_device(char const* launcher, std::filesystem::path const& descriptors = "/proc/self/fd");

/// Other threads do not exist in a forked child, but their locks do: the child would hang in its first parallel region.
void require_single_thread(char const* launcher);

/// A store without a descriptor for one more connection doesn't say so: the rank would wait for it. So this is
/// generous: the store, and for each rank a pipe, a connection, and one more as ranks have among each other.
void require_descriptors(char const* launcher, int ranks);

/// Starts ranks and brings all of them to an end. Not reentrant.
class Processes {
 public:
  using Body = std::function<std::string(int rank)>;

  struct Result {
    std::string value;              // what rank 0's body returned
    std::vector<Failure> failures;  // first failure first
  };

  /// `forwarded`: signals to this process that go on to the ranks, instead of ending them.
  Processes(int num_ranks, std::chrono::milliseconds shutdown_timeout, std::vector<int> forwarded = {})
      : children_(static_cast<std::size_t>(num_ranks)),
        shutdown_timeout_(shutdown_timeout),
        forwarded_(std::move(forwarded)) {}

  /// `body` runs in each forked child, which never returns from here; `serve` runs in the parent once all children
  /// exist.
  Result run(Body const& body, std::function<void()> const& serve);

  /// `command(rank, report)` starts a program that runs as the rank, and returns its process. The program inherits the
  /// descriptor `report`, and hands it to be_rank or tells its end there by itself.
  using Command = std::function<pid_t(int rank, int report)>;
  Result run_commands(Command const& command, std::function<void()> const& serve);

  /// In a rank: runs `body`, tells the parent what it returned or threw, and ends the process.
  [[noreturn]] static void be_rank(pid_t parent, int report, std::function<std::string()> const& body);
  /// Exceptions that nobody catches, such as those of a backend's thread, are told as well.
  ///
  /// [Note: children of a rank] A process that a rank forks inherits the pipe, handlers and all. How it ends is between
  /// the two of them: told as the rank's end, it would fail a job that is well, or hide why one failed.
  /// tests/launch/processes.cpp
  static void report_uncaught(int report);
  /// A rank leads its own group and ends with its parent.
  static void follow(pid_t parent) {
    ::setpgid(0, 0);  // a rank's own children end with it, and Ctrl-C reaches the ranks through the parent alone
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
  }
  /// Of the exception that is being handled.
  static RankReport report_of_exception();
  static void tell(int pipe, RankReport const& report);

 private:
  class SignalPipe;

  template <class Start>
  Result start_and_watch(char const* launcher, std::function<void()> const& serve, Start const& start_process) {
    std::cout.flush();
    std::fflush(nullptr);
    SignalPipe const signals(forwarded_);
    try {
      for (std::size_t rank = 0; rank < children_.size(); ++rank)
        start(static_cast<int>(rank), launcher,
              [&](int report) { return start_process(static_cast<int>(rank), report, signals); });
      serve();
    } catch (...) {
      end_all();
      throw;
    }
    watch(signals);
    end_all();
    return result();
  }

  using Clock = std::chrono::steady_clock;

  struct Child {
    pid_t pid = -1;
    int pipe = -1;
    std::string received;
    bool alive = false;
    bool ended_by_us = false;
    int status = 0;
    std::int64_t noticed_ns = 0;
    RankReport report;
    bool failed() const { return report.ending != Ending::returned; }
  };

  /// SIGINT, SIGTERM, SIGHUP and forwarded signals to the parent become a byte in a pipe while ranks run. SIGCHLD does
  /// what it does by default: where it is ignored, or handled by somebody who waits for any child, how a rank ended
  /// would be lost.
  class SignalPipe {
   public:
    explicit SignalPipe(std::vector<int> const& forwarded);
    ~SignalPipe();
    SignalPipe(SignalPipe const&) = delete;
    SignalPipe& operator=(SignalPipe const&) = delete;

    /// fork(2), whose child has the handlers and the signal mask that the program had before. They are back before the
    /// fork, so that what the program does at forks (pthread_atfork) finds them.
    pid_t fork() const;
    int descriptor() const { return ends()[0]; }
    int read() const {
      unsigned char byte = 0;
      return ::read(ends()[0], &byte, 1) == 1 ? byte : 0;
    }

   private:
    struct Caught {
      int signal;
      struct sigaction before;
    };
    void install() const;
    void restore() const {
      for (auto const& caught : caught_) ::sigaction(caught.signal, &caught.before, nullptr);
    }

    static int* ends() {
      static int pipe_ends[2] = {-1, -1};
      return pipe_ends;
    }
    std::vector<Caught> caught_;
    struct sigaction child_before_;
    sigset_t mask_before_, mask_;  // forwarded signals arrive, also where the program has them blocked
  };

  template <class StartProcess>
  void start(int rank, char const* launcher, StartProcess const& start_process) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      fail<LaunchError>("weft: ", launcher, ": no pipe for rank ", rank, ": ", std::strerror(errno));
    pid_t const pid = start_process(ends[1]);
    int const reason = errno;
    ::close(ends[1]);
    if (pid < 0) {
      ::close(ends[0]);
      fail<LaunchError>("weft: ", launcher, ": rank ", rank, " could not be started: ", std::strerror(reason));
    }
    ::setpgid(pid, pid);  // in the child too: whoever comes first
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    auto& child = children_[static_cast<std::size_t>(rank)];
    child.pid = pid;
    child.pipe = ends[0];
    child.alive = true;
  }

  bool forwards(int signal) const;

  /// Until all ranks returned, one failed, or a signal asks to stop.
  void watch(SignalPipe const& signals);

  void wait_for_news(SignalPipe const& signals);

  /// Reads what ranks sent and takes note of those that ended.
  void collect();

  static void drain(Child& child);
  static void close_pipe(Child& child) {
    if (child.pipe >= 0) ::close(child.pipe);
    child.pipe = -1;
  }

  static void understand(Child& child);

  /// Ends what still runs: asks, waits at most shutdown_timeout, then kills.
  void end_all();

  Result result();

  std::vector<Child> children_;
  std::chrono::milliseconds shutdown_timeout_;
  std::vector<int> forwarded_;
  int interrupted_by_ = 0;
};

}  // namespace weft::launch

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/processes.ipp>
#endif
