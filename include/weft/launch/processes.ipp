// launch/processes.ipp -- definitions of launch/processes.hpp.
#pragma once

#include <weft/launch/processes.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <c10/util/Exception.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::launch {

WEFT_INLINE bool tells_of_lost_peer(std::exception const& error) {
  std::string_view const text = error.what();
  for (std::string_view sign :
       {"Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo/transport", "Socket Timeout",
        "Connection was likely closed", "Timed out waiting"})
    if (text.find(sign) != text.npos) return true;
  return false;
}

WEFT_INLINE std::string names_of(std::vector<int> const& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
    for (end = begin + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    if (end - begin == 2) --end;  // "0, 1"
    text += (begin == 0 ? "" : ", ") + std::to_string(ranks[begin]);
    if (end - begin > 2) text += "-" + std::to_string(ranks[end - 1]);
  }
  return text;
}

WEFT_INLINE std::string still_elsewhere(std::vector<int> const& ranks) {
  return ranks.empty() ? "" : "; still elsewhere: " + names_of(ranks);
}

namespace detail {

/// Each "rank 3 of 8" of a text, whatever the number; `of` is " of 8".
struct NamedRank {
  std::size_t begin, end;
  int rank;
};
WEFT_INLINE std::vector<NamedRank> named_ranks(std::string_view text, std::string_view of) {
  constexpr std::string_view word = "rank ";
  auto const is_digit = [&](std::size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
  std::vector<NamedRank> found;
  for (auto begin = text.find(word); begin != text.npos; begin = text.find(word, begin + 1)) {
    auto end = begin + word.size();
    int rank = 0;
    auto const [after, error] = std::from_chars(text.data() + end, text.data() + text.size(), rank);
    if (error != std::errc()) continue;
    end = static_cast<std::size_t>(after - text.data());
    if (!text.substr(end).starts_with(of) || is_digit(end + of.size())) continue;
    found.push_back({begin, end + of.size(), rank});
  }
  return found;
}

}  // namespace detail

// A text that names other ranks, too, is the same for all who say it, or it is about one pair of ranks: it stays as it
// is, but for its beginning, which is the speaker's.
WEFT_INLINE CommonSentence::CommonSentence(std::string const& message, int rank, int num_ranks)
    : form_(message), num_ranks_(num_ranks) {
  auto named = detail::named_ranks(message, " of " + std::to_string(num_ranks));
  auto const is_other = [rank](detail::NamedRank const& place) { return place.rank != rank; };
  if (std::any_of(named.begin(), named.end(), is_other)) {
    bool const begins = named.front().rank == rank && named.front().begin == std::string_view("weft: ").size();
    named.resize(begins ? 1 : 0);
  }
  for (auto place = named.rbegin(); place != named.rend(); ++place)
    form_.replace(place->begin, place->end - place->begin, 1, '\0');
}

WEFT_INLINE std::string CommonSentence::of(std::vector<int> const& ranks) const {
  using namespace std::string_view_literals;
  auto text = form_;
  auto const replace = [&text](std::string_view before, std::string_view after) {
    for (auto at = text.find(before); at != text.npos; at = text.find(before, at + after.size()))
      text.replace(at, before.size(), after);
  };
  if (ranks.size() > 1) {
    replace("\0 was ended"sv, "\0 were ended"sv);
    replace("before its function returned", "before their functions returned");
  }
  replace("\0"sv, names_of(ranks) + " of " + std::to_string(num_ranks_));
  return text;
}

WEFT_INLINE std::vector<std::string> sentences(std::vector<Failure> const& failures, int num_ranks) {
  std::vector<std::pair<CommonSentence, std::vector<int>>> alike;
  for (auto const& failure : failures) {
    CommonSentence const sentence(failure.message, failure.rank, num_ranks);
    auto found = std::find_if(alike.begin(), alike.end(),
                              [&](auto const& known) { return known.first.form() == sentence.form(); });
    if (found == alike.end()) found = alike.insert(alike.end(), {sentence, {}});
    auto& ranks = found->second;
    ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), failure.rank), failure.rank);
  }
  std::vector<std::string> texts;
  for (auto const& [sentence, ranks] : alike) texts.push_back(sentence.of(ranks));
  return texts;
}

WEFT_INLINE void require_no_device(char const* launcher, std::filesystem::path const& descriptors) {
  std::error_code ignored;
  for (std::filesystem::directory_iterator it(descriptors, ignored), end; it != end; it.increment(ignored))
    if (std::filesystem::read_symlink(it->path(), ignored) == "/dev/nvidia-uvm")
      fail<LaunchError>("weft: ", launcher,
                        ": CUDA is in use in this process, and would fail in forked ranks; first use it in the "
                        "launched function, or write the launcher Popen");
}

WEFT_INLINE void require_single_thread(char const* launcher) {
  std::size_t threads = 0;
  // A thread that has been joined stays listed until the kernel is done with it: an earlier launch's store, on a busy
  // machine.
  for (int wait = 0; wait < 50; ++wait) {
    std::error_code ignored;
    threads = 0;
    for (std::filesystem::directory_iterator it("/proc/self/task", ignored), end; it != end; it.increment(ignored))
      ++threads;
    if (threads <= 1) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  fail<LaunchError>("weft: ", launcher, ": this process has ", threads,
                    " threads, so forked ranks could hang. OpenMP, autograd or CUDA was used",
                    " before launch: move that work into the launched function, write the launcher Popen, or start the "
                    "program with OMP_NUM_THREADS=1");
}

WEFT_INLINE void require_descriptors(char const* launcher, int ranks) {
  std::size_t open = 0;
  std::error_code ignored;
  for (std::filesystem::directory_iterator it("/proc/self/fd", ignored), end; it != end; it.increment(ignored)) ++open;
  ::rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  auto const needed = open + 16 + 3 * static_cast<std::size_t>(ranks);
  if (limit.rlim_cur < needed)
    fail<LaunchError>("weft: ", launcher, ": ", ranks, " ranks need up to ", needed,
                      " file descriptors, of which this process has ", open, " open, and it may have ", limit.rlim_cur,
                      "; raise the limit (ulimit -n)");
}

WEFT_INLINE auto Processes::run(Body const& body, std::function<void()> const& serve) -> Result {
  require_no_device("Fork");
  require_single_thread("Fork");
  pid_t const parent = ::getpid();
  return start_and_watch("Fork", serve, [&](int rank, int report, SignalPipe const& signals) {
    pid_t const pid = signals.fork();
    if (pid != 0) return pid;
    for (auto const& sibling : children_)
      if (sibling.pipe >= 0) ::close(sibling.pipe);
    be_rank(parent, report, [&] { return body(rank); });
  });
}

WEFT_INLINE auto Processes::run_commands(Command const& command, std::function<void()> const& serve) -> Result {
  return start_and_watch("Popen", serve, [&](int rank, int report, SignalPipe const&) {
    ::fcntl(report, F_SETFD, 0);
    return command(rank, report);
  });
}

WEFT_INLINE void Processes::be_rank(pid_t parent, int report, std::function<std::string()> const& body) {
  follow(parent);
  inside_launched_function() = true;
  report_uncaught(report);
  pid_t const rank = ::getpid();
  RankReport told{Ending::returned, 0, {}};
  try {
    told.text = body();
  } catch (...) {
    told = report_of_exception();
  }
  if (::getpid() == rank) tell(report, told);  // see [Note: children of a rank]
  std::cout.flush();
  std::fflush(nullptr);
  ::_exit(told.ending == Ending::returned ? 0 : 1);
}

WEFT_INLINE void Processes::report_uncaught(int report) {
  static int descriptor = -1;
  static pid_t rank = 0;
  static auto const before = std::get_terminate();
  descriptor = report;
  rank = ::getpid();
  std::set_terminate([] {
    if (::getpid() != rank) before();
    if (std::current_exception()) tell(descriptor, report_of_exception());
    std::cout.flush();
    std::fflush(nullptr);
    ::_exit(1);
  });
}

WEFT_INLINE RankReport Processes::report_of_exception() {
  try {
    throw;
  } catch (c10::Error const& error) {
    return {tells_of_lost_peer(error) ? Ending::lost_peer : Ending::threw, now_ns(), error.what_without_backtrace()};
  } catch (std::exception const& error) {
    std::string text = error.what();
    if (text.find("Received data size doesn't match expected size") != text.npos ||
        text.find("gloo::EnforceNotMet") != text.npos)
      text = "ranks made different calls, and one got a message that was meant for another (Gloo: " +
             text.substr(0, text.find('\n')) + "); run with LaunchOptions::check_collectives to see which call differs";
    return {tells_of_lost_peer(error) ? Ending::lost_peer : Ending::threw, now_ns(), std::move(text)};
  } catch (...) {
    return {Ending::threw, now_ns(), "an exception that is not a std::exception"};
  }
}

WEFT_INLINE void Processes::tell(int pipe, RankReport const& report) {
  std::string bytes(1, static_cast<char>(report.ending));
  bytes.append(reinterpret_cast<char const*>(&report.when_ns), sizeof report.when_ns);
  bytes += report.text;
  for (std::string_view rest = bytes; !rest.empty();) {
    auto const written = ::write(pipe, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

WEFT_INLINE Processes::SignalPipe::SignalPipe(std::vector<int> const& forwarded) {
  if (::pipe2(ends(), O_CLOEXEC | O_NONBLOCK) != 0) fail<LaunchError>("weft: launch: no pipe: ", std::strerror(errno));
  auto const catch_signal = [this](int signal, bool also_ignored) {
    Caught caught{signal, {}};
    ::sigaction(signal, nullptr, &caught.before);
    if (also_ignored || caught.before.sa_handler != SIG_IGN) caught_.push_back(caught);  // nohup's SIGHUP stays ignored
  };
  sigset_t unblocked;
  ::sigemptyset(&unblocked);
  for (int const signal : forwarded) {
    catch_signal(signal, true);
    ::sigaddset(&unblocked, signal);
  }
  for (int const signal : {SIGINT, SIGTERM, SIGHUP})
    if (!::sigismember(&unblocked, signal)) catch_signal(signal, false);
  install();
  ::pthread_sigmask(SIG_UNBLOCK, &unblocked, &mask_before_);
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask_);
  struct sigaction by_default{};
  ::sigaction(SIGCHLD, &by_default, &child_before_);
}

WEFT_INLINE Processes::SignalPipe::~SignalPipe() {
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  restore();
  ::sigaction(SIGCHLD, &child_before_, nullptr);
  ::close(ends()[0]);
  ::close(ends()[1]);
}

WEFT_INLINE void Processes::SignalPipe::install() const {
  struct sigaction action{};
  action.sa_handler = [](int signal) {
    int const saved = errno;
    auto const byte = static_cast<unsigned char>(signal);
    [[maybe_unused]] auto const written = ::write(ends()[1], &byte, 1);
    errno = saved;
  };
  for (auto const& caught : caught_) ::sigaction(caught.signal, &action, nullptr);
}

WEFT_INLINE pid_t Processes::SignalPipe::fork() const {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);  // a signal to the parent waits until it is the parent's again
  restore();
  pid_t const pid = ::fork();
  int const reason = errno;
  if (pid == 0)
    ::sigaction(SIGCHLD, &child_before_, nullptr);
  else
    install();
  ::pthread_sigmask(SIG_SETMASK, pid == 0 ? &mask_before_ : &mask_, nullptr);
  errno = reason;
  return pid;
}

WEFT_INLINE bool Processes::forwards(int signal) const {
  return std::find(forwarded_.begin(), forwarded_.end(), signal) != forwarded_.end();
}

WEFT_INLINE void Processes::watch(SignalPipe const& signals) {
  std::optional<Clock::time_point> deadline;  // how long to wait for the cause behind a first failure
  while (std::any_of(children_.begin(), children_.end(), [](Child const& child) { return child.alive; })) {
    wait_for_news(signals);
    while (int const signal = signals.read()) {
      if (!forwards(signal)) {
        interrupted_by_ = signal;
        return;
      }
      for (auto const& child : children_)
        if (child.alive) ::kill(child.pid, signal);  // it alone: what it started is its own
    }
    collect();
    bool failed = false, cause_known = false;
    for (auto const& child : children_) {
      if (child.alive || !child.failed()) continue;
      failed = true;
      cause_known |= child.report.ending != Ending::lost_peer;
    }
    if (!failed) continue;
    // [Note: the first failure is not the first message] A rank that lost its peer may report before the peer's
    // death is noticed: give the cause a moment, and the followers a shorter one to say their part.
    auto const patience = cause_known ? std::chrono::milliseconds(150) : std::chrono::milliseconds(1500);
    if (!deadline || *deadline > Clock::now() + patience) deadline = Clock::now() + patience;
    if (Clock::now() >= *deadline) return;
  }
}

WEFT_INLINE void Processes::wait_for_news(SignalPipe const& signals) {
  std::vector<pollfd> polled{{signals.descriptor(), POLLIN, 0}};
  bool closing = false;
  for (auto const& child : children_) {
    if (child.pipe >= 0) polled.push_back({child.pipe, POLLIN, 0});
    closing |= child.alive && child.pipe < 0;
  }
  ::poll(polled.data(), polled.size(), closing ? 1 : 50);
}

WEFT_INLINE void Processes::collect() {
  for (auto& child : children_) {
    drain(child);
    if (!child.alive) continue;
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid != child.pid)
      continue;
    drain(child);
    ::kill(-child.pid,
           SIGKILL);  // what the rank itself had started; it is still a zombie, so its number is not taken again
    ::waitpid(child.pid, &child.status, 0);
    child.alive = false;
    child.noticed_ns = now_ns();
    close_pipe(child);
    understand(child);
  }
}

WEFT_INLINE void Processes::drain(Child& child) {
  char buffer[1 << 16];
  while (child.pipe >= 0) {
    auto const count = ::read(child.pipe, buffer, sizeof buffer);
    if (count > 0) {
      child.received.append(buffer, static_cast<std::size_t>(count));
    } else if (count == 0) {
      close_pipe(child);
    } else if (errno != EINTR) {
      return;
    }
  }
}

WEFT_INLINE void Processes::understand(Child& child) {
  constexpr std::size_t head = 1 + sizeof(std::int64_t);
  bool const clean = WIFEXITED(child.status);
  if (child.received.size() >= head) {
    child.report.ending = static_cast<Ending>(child.received.front());
    std::memcpy(&child.report.when_ns, child.received.data() + 1, sizeof child.report.when_ns);
    child.report.text = child.received.substr(head);
  }
  child.received.clear();
  bool const died_after_value = child.report.ending == Ending::returned && (!clean || WEXITSTATUS(child.status) != 0);
  if (died_after_value) child.report.ending = Ending::crashed;
  if (child.report.ending == Ending::crashed) {
    child.report.when_ns = child.noticed_ns;
    child.report.text = WIFSIGNALED(child.status)
                            ? std::string("was ended by signal ") + std::to_string(WTERMSIG(child.status)) + " (" +
                                  ::strsignal(WTERMSIG(child.status)) + ")"
                            : "exited with code " + std::to_string(WEXITSTATUS(child.status)) +
                                  " before its function returned";
  }
}

WEFT_INLINE void Processes::end_all() {
  auto const signal_all = [this](int signal) {
    for (auto& child : children_)
      if (child.alive) {
        child.ended_by_us = true;
        ::kill(-child.pid, signal);
        ::kill(child.pid, signal);  // in case it has not become the leader of its group yet
      }
  };
  auto const any_alive = [this] {
    return std::any_of(children_.begin(), children_.end(), [](Child const& child) { return child.alive; });
  };
  signal_all(SIGTERM);
  for (auto const deadline = Clock::now() + shutdown_timeout_; any_alive() && Clock::now() < deadline; ::usleep(2000))
    collect();
  signal_all(SIGKILL);
  for (; any_alive(); ::usleep(2000)) collect();
}

WEFT_INLINE auto Processes::result() -> Result {
  Result result;
  if (interrupted_by_ != 0) {
    result.failures.push_back({-1,
                               std::string("weft: interrupted by signal ") + std::to_string(interrupted_by_) + " (" +
                                   ::strsignal(interrupted_by_) + "); all ranks were ended",
                               128 + interrupted_by_});
    return result;
  }
  std::vector<std::size_t> failed;  // the first to fail first; who only lost a peer comes last
  std::vector<int> elsewhere;
  auto const earlier = [this](std::size_t a, std::size_t b) {
    auto const key = [this](std::size_t rank) {
      auto const& report = children_[rank].report;
      return std::pair(report.ending == Ending::lost_peer, report.when_ns);
    };
    return key(a) < key(b);
  };
  for (std::size_t rank = 0; rank < children_.size(); ++rank)
    if (children_[rank].ended_by_us && children_[rank].report.ending == Ending::crashed)
      elsewhere.push_back(static_cast<int>(rank));
    else if (children_[rank].failed())
      failed.insert(std::upper_bound(failed.begin(), failed.end(), rank, earlier), rank);
  bool const only_lost = !failed.empty() && children_[failed.front()].report.ending == Ending::lost_peer;
  for (std::size_t rank : failed) {
    auto const& child = children_[rank];
    result.failures.push_back(
        {static_cast<int>(rank),
         "weft: rank " + std::to_string(rank) + " of " + std::to_string(children_.size()) +
             (child.report.ending == Ending::crashed ? " " : " failed: ") + child.report.text +
             (only_lost && child.report.ending == Ending::lost_peer ? still_elsewhere(elsewhere) : ""),
         WIFSIGNALED(child.status) ? 128 + WTERMSIG(child.status) : std::max(1, WEXITSTATUS(child.status))});
  }
  if (result.failures.empty()) result.value = std::move(children_.front().report.text);
  return result;
}

}  // namespace weft::launch
