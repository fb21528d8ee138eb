// launch/popen.hpp -- ranks as new runs of this program.
// In: how many ranks. Out: in the parent, how they ended; in each rank, what the parent told it.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/types.h>
#include <unistd.h>

#include <weft/core/error.hpp>
#include <weft/launch/processes.hpp>

extern char** environ;

namespace weft::inline v0::launch {

/// What the parent tells a rank, in one variable, which the rank takes out of its environment.
struct PopenRank {
  static constexpr char const* variable = "WEFT_POPEN_RANK";

  int rank = 0;
  int world_size = 1;
  std::uint16_t port = 0;
  int report = -1;  // the descriptor that the parent reads
  pid_t parent = 0;
  int attempt = 0;

  std::string text() const {
    std::ostringstream out;
    out << rank << ' ' << world_size << ' ' << port << ' ' << report << ' ' << parent << ' ' << attempt;
    return out.str();
  }
};

/// Whether this process is a rank that Popen started; the same answer at each call.
[[gnu::visibility("default")]] inline std::optional<PopenRank> const& popen_rank() {
  static auto const told = []() -> std::optional<PopenRank> {
    char const* const text = std::getenv(PopenRank::variable);
    if (!text) return std::nullopt;
    PopenRank rank;
    std::istringstream in(text);
    if (!(in >> rank.rank >> rank.world_size >> rank.port >> rank.report >> rank.parent >> rank.attempt))
      fail<LaunchError>("weft: Popen: ", PopenRank::variable, " = \"", text, "\" was not written by weft; unset it");
    if (::getppid() != rank.parent || ::fcntl(rank.report, F_GETFD) < 0)
      fail<LaunchError>("weft: Popen: ", PopenRank::variable, " = \"", text, "\" says that process ", rank.parent,
                        " started this one and reads its descriptor ", rank.report, ", but its parent is process ",
                        ::getppid(),
                        "; unset the variable, which weft writes for ranks alone, or start the program again if its "
                        "parent has just ended");
    ::unsetenv(PopenRank::variable);
    ::fcntl(rank.report, F_SETFD, FD_CLOEXEC);
    return rank;
  }();
  return told;
}

/// Runs this program again, with its arguments, as one rank.
inline pid_t recompute(PopenRank const& rank) {
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
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
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

/// In a rank whose program goes on after launch(): the parent hears of an uncaught exception, or of the program's
/// regular end.
inline void report_at_exit(int report) {
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
