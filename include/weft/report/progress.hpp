// report/progress.hpp -- one line that says how far a loop is.
// In: a count and a text. Out: on a terminal a line that is rewritten, in a file a line every tenth of the way.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>

#include <unistd.h>

namespace weft::report {

class Progress {
 public:
  /// `visible` false prints nothing: for all ranks but one.
  Progress(std::size_t total, bool visible = true, std::FILE* out = stderr)
      : total_(std::max<std::size_t>(total, 1)), visible_(visible), terminal_(::isatty(::fileno(out)) == 1), out_(out) {}
  ~Progress() { finish(); }
  Progress(Progress const&) = delete;
  Progress& operator=(Progress const&) = delete;

  /// Whether update(done) would print: the text may cost something to make.
  bool is_due(std::size_t done) const {
    if (!visible_) return false;
    if (done >= total_) return true;
    return terminal_ ? Clock::now() - last_ >= std::chrono::milliseconds(100) : done * 10 / total_ > tenths_;
  }

  void update(std::size_t done, std::string const& text) {
    if (!is_due(done)) return;
    last_ = Clock::now();
    tenths_ = done * 10 / total_;
    std::size_t const filled = std::min(done, total_) * width / total_;
    std::string line = "[" + std::string(filled, '#') + std::string(width - filled, '.') + "] " + std::to_string(done) + "/" + std::to_string(total_) + "  " + text;
    if (terminal_) {
      std::size_t const length = line.size();
      line.append(longest_ > length ? longest_ - length : 0, ' ');
      longest_ = std::max(longest_, length);
      std::fprintf(out_, "\r%s", line.c_str());
      open_ = true;
    } else {
      std::fprintf(out_, "%s\n", line.c_str());
    }
    std::fflush(out_);
  }

  /// Ends the line, so that something else can be printed.
  void finish() {
    if (std::exchange(open_, false)) std::fprintf(out_, "\n");
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t width = 30;

  std::size_t total_;
  bool visible_;
  bool terminal_;
  std::FILE* out_;
  Clock::time_point last_{};
  std::size_t tenths_ = 0;
  std::size_t longest_ = 0;
  bool open_ = false;
};

}  // namespace weft::report
