// launch/popen.hpp -- ranks as new runs of this program.
// In: how many ranks. Out: in the parent, how they ended; in each rank, what the parent told it.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/types.h>
#include <unistd.h>

#include <weft/core/error.hpp>

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
  std::uint64_t held = 0;  // bit n: signal n is blocked until launch, so that it finds the program's handler

  std::string text() const {
    std::ostringstream out;
    out << rank << ' ' << world_size << ' ' << port << ' ' << report << ' ' << parent << ' ' << attempt << ' ' << held;
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
    if (!(in >> rank.rank >> rank.world_size >> rank.port >> rank.report >> rank.parent >> rank.attempt >> rank.held))
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

/// For PopenRank::held: of these signals, those that this process has not blocked itself.
std::uint64_t signals_to_hold(std::vector<int> const& signals);
/// In the rank, at its launch.
void deliver_held_signals(PopenRank const& rank);

/// Runs this program again, with its arguments, as one rank.
pid_t run_again(PopenRank const& rank);

/// In a rank whose program goes on after launch(): the parent hears of an uncaught exception, or of the program's
/// regular end.
void report_at_exit(int report);

}  // namespace weft::launch

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/popen.ipp>
#endif
