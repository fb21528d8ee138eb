// launch/popen.ipp -- definitions of launch/popen.hpp.
#pragma once

#include <weft/launch/popen.hpp>

#include <csignal>
#include <fstream>
#include <iterator>
#include <vector>

#include <weft/core/build.hpp>
#include <weft/launch/processes.hpp>

namespace weft::inline v0::launch {

namespace detail {

WEFT_INLINE sigset_t held_signals(std::uint64_t held) {
  sigset_t set;
  ::sigemptyset(&set);
  for (int signal = 1; signal < 64; ++signal)
    if (held >> signal & 1) ::sigaddset(&set, signal);
  return set;
}

}  // namespace detail

WEFT_INLINE std::uint64_t signals_to_hold(std::vector<int> const& signals) {
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  std::uint64_t held = 0;
  for (int const signal : signals)
    if (!::sigismember(&blocked, signal)) held |= std::uint64_t{1} << signal;
  return held;
}

WEFT_INLINE void deliver_held_signals(PopenRank const& rank) {
  auto const held = detail::held_signals(rank.held);
  ::pthread_sigmask(SIG_UNBLOCK, &held, nullptr);
}

WEFT_INLINE pid_t run_again(PopenRank const& rank) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string const line{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < line.size(); begin = line.find('\0', begin) + 1)
    words.push_back(line.substr(begin, line.find('\0', begin) - begin));
  std::vector<char*> arguments, variables;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  auto told = std::string(PopenRank::variable) + "=" + rank.text();
  for (char** variable = environ; *variable; ++variable) variables.push_back(*variable);
  variables.push_back(told.data());
  variables.push_back(nullptr);

  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  auto mask = detail::held_signals(rank.held);
  sigset_t own;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &own);
  for (int signal = 1; signal < 64; ++signal)
    if (::sigismember(&own, signal) == 1) ::sigaddset(&mask, signal);
  ::posix_spawnattr_setsigmask(&attributes, &mask);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  char program[4096];
  auto const length = ::readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) return -1;
  program[length] = '\0';
  pid_t pid = -1;
  int const error = ::posix_spawn(&pid, program, nullptr, &attributes, arguments.data(), variables.data());
  ::posix_spawnattr_destroy(&attributes);
  errno = error;
  return error == 0 ? pid : -1;
}

WEFT_INLINE void report_at_exit(int report) {
  static int descriptor = -1;
  static pid_t rank = 0;
  descriptor = report;
  rank = ::getpid();
  Processes::report_uncaught(report);
  std::atexit([] {
    if (::getpid() == rank)
      Processes::tell(descriptor, {Ending::returned, now_ns(), {}});  // see [Note: children of a rank]
  });
}

}  // namespace weft::launch
