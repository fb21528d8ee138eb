// report/progress.hpp -- one line that says how far a loop is.
// In: a count, perhaps a total, and a text. Out: on a terminal a line that is rewritten; in a file or a pipe a line
// every tenth of the way.
#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/ioctl.h>
#include <unistd.h>

namespace weft::inline v0::report {

struct ProgressOptions {
  std::string text{};   // what advances
  bool visible = true;  // false prints nothing: for all ranks but one
  std::FILE* out = stderr;
  std::chrono::milliseconds interval{100};          // on a terminal, between two lines
  std::chrono::milliseconds file_interval{60'000};  // elsewhere, where a tenth takes longer or the total is not known
};

class Progress;

namespace detail {

/// The bars of this process, outermost first. They share one line, which has to go while something else is printed.
struct LiveBars {
  std::recursive_mutex mutex;
  std::vector<Progress*> bars;
  std::size_t width = 0;  // of what stands on the line

  [[gnu::visibility("default")]] static LiveBars& instance() {
    static auto* const live = new LiveBars;  // bars may end after static objects do
    return *live;
  }
};

/// Columns that a text takes: code points. Cut to at most so many.
inline std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; }));
}
inline std::string cut(std::string text, std::size_t columns) {
  std::size_t used = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    if ((text[i] & 0xc0) != 0x80 && used++ == columns) return text.substr(0, i);
  return text;
}

inline std::string clock_text(double seconds) {
  auto const whole = static_cast<long long>(seconds);
  char text[48];
  if (whole >= 3600)
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  else
    std::snprintf(text, sizeof text, "%lld:%02lld", whole / 60, whole % 60);
  return text;
}

}  // namespace detail

/// How far: what a line is made of.
struct ProgressState {
  std::string text{};
  std::size_t done = 0;
  std::size_t before = 0;  // of those, done before the beginning
  std::optional<std::size_t> total{};
  double seconds = 0;  // since the beginning
  std::string note{};

  /// "epoch 1 40/100"
  std::string count() const {
    return (text.empty() ? "" : text + " ") + std::to_string(done) + (total ? "/" + std::to_string(*total) : "");
  }
  /// "12.1/s 0:05 left"; at the end, and where the total is not known, the time that has passed.
  std::string speed() const {
    if (done <= before || seconds <= 0) return "";
    double const rate = static_cast<double>(done - before) / seconds;
    char text_of_rate[48];
    std::snprintf(text_of_rate, sizeof text_of_rate, rate >= 1 ? "%.1f/s" : "%.1f s each", rate >= 1 ? rate : 1 / rate);
    bool const ends = total && done < *total;
    return text_of_rate + (" " + detail::clock_text(ends ? static_cast<double>(*total - done) / rate : seconds)) +
           (ends ? " left" : "");
  }
  /// At most `columns` wide; the bar takes what the rest leaves, 30 at most.
  std::string line(std::size_t columns) const {
    auto const right = std::string(total ? "] " : "") + speed() + (note.empty() ? "" : "  " + note);
    auto const taken = detail::columns_of(count()) + detail::columns_of(right) + 2;
    std::string bar;
    if (total && taken + 5 <= columns) {
      std::size_t const width = std::min<std::size_t>(30, columns - taken);
      std::size_t const filled = *total == 0 ? width : std::min(done, *total) * width / *total;
      bar = " [" + std::string(filled, '#') + std::string(width - filled, '.');
      return count() + bar + right;
    }
    return detail::cut(count() + " " + speed() + (note.empty() ? "" : "  " + note), columns);
  }
};

/// Of loops inside of each other each has one: the inner one's line begins with how far the outer ones are.
class Progress {
 public:
  /// Without a total there is a count and its speed.
  explicit Progress(std::optional<std::size_t> total, ProgressOptions options = {}) : options_(std::move(options)) {
    state_.text = options_.text;
    state_.total = total;
    char const* const kind = std::getenv("TERM");
    terminal_ = ::isatty(::fileno(options_.out)) == 1 && !(kind && std::string_view(kind) == "dumb");
    if (!options_.visible) return;
    auto& live = detail::LiveBars::instance();
    std::lock_guard const lock(live.mutex);
    live.bars.push_back(this);
    if (terminal_) tell();
  }
  ~Progress() { finish(); }
  Progress(Progress const&) = delete;
  Progress& operator=(Progress const&) = delete;

  /// Whether update(done) would print: the note may cost something to make.
  bool is_due(std::size_t done) const {
    if (!options_.visible || finished_) return false;
    auto const now = Clock::now();
    if (terminal_)
      return now - printed_ >= options_.interval || (state_.total && done >= *state_.total && done != state_.done);
    return now - printed_ >= options_.file_interval ||
           (state_.total && *state_.total > 0 && done * 10 / *state_.total > tenths_);
  }

  /// What was done before this began, which says nothing of its speed.
  void go_on_from(std::size_t done) { state_.before = state_.done = done; }

  void update(std::size_t done, std::string const& note = {}) {
    if (!options_.visible || finished_) return;
    auto& live = detail::LiveBars::instance();
    std::lock_guard const lock(live.mutex);
    bool const due = is_due(done);
    state_.done = done;
    if (!due) return;
    state_.note = note;
    tell();
  }

  /// The last line, and the end of it, so that something else can be printed.
  void finish() {
    if (!options_.visible || finished_) return;
    auto& live = detail::LiveBars::instance();
    std::lock_guard const lock(live.mutex);
    bool const inner = outermost() != this;
    if (terminal_ && inner) {
      clear();
    } else if (terminal_ || state_.done != told_) {
      tell();
      if (terminal_) std::fprintf(options_.out, "\n");
      std::fflush(options_.out);
      live.width = 0;
    }
    finished_ = true;
    std::erase(live.bars, this);
  }

  ProgressState const& state() const { return state_; }

 private:
  template <class Print>
  friend void beside_bars(Print const& print);
  using Clock = std::chrono::steady_clock;

  Progress* outermost() const {
    auto const& bars = detail::LiveBars::instance().bars;
    return *std::find_if(bars.begin(), bars.end(),
                         [this](Progress const* bar) { return bar->options_.out == options_.out; });
  }
  std::size_t columns() const {
    ::winsize size{};
    // A line that fills the last column would wrap, and could not be rewritten.
    return ::ioctl(::fileno(options_.out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79u;
  }

  void tell() {
    printed_ = Clock::now();
    told_ = state_.done;
    state_.seconds = std::chrono::duration<double>(printed_ - began_).count();
    if (state_.total && *state_.total > 0) tenths_ = state_.done * 10 / *state_.total;
    draw();
  }
  /// The line of this bar behind the counts of those around it.
  void draw() const {
    auto& live = detail::LiveBars::instance();
    std::string around;
    for (auto const* bar : live.bars) {
      if (bar == this) break;
      if (bar->options_.out == options_.out) around += bar->state_.count() + " | ";
    }
    if (!terminal_) {
      std::fprintf(options_.out, "%s%s%s%s%s%s\n", around.c_str(), state_.count().c_str(), state_.done ? " " : "",
                   state_.speed().c_str(), state_.note.empty() ? "" : "  ", state_.note.c_str());
    } else {
      auto const room = columns();
      auto const line = detail::cut(
          around + state_.line(room > detail::columns_of(around) ? room - detail::columns_of(around) : 0), room);
      auto const width = detail::columns_of(line);
      std::fprintf(
          options_.out, "\r%s%s", line.c_str(),
          std::string(live.width > width ? std::min(live.width, room) - std::min(width, room) : 0, ' ').c_str());
      live.width = width;
    }
    std::fflush(options_.out);
  }
  void clear() const {
    auto& live = detail::LiveBars::instance();
    if (live.width == 0) return;
    std::fprintf(options_.out, "\r%s\r", std::string(std::min(live.width, columns()), ' ').c_str());
    std::fflush(options_.out);
    live.width = 0;
  }

  ProgressOptions options_;
  ProgressState state_;
  bool terminal_ = false;
  bool finished_ = false;
  Clock::time_point began_ = Clock::now();
  Clock::time_point printed_ = began_;
  std::size_t tenths_ = 0;
  std::size_t told_ = 0;
};

/// Prints while the line of the bars is away.
///
///   weft::report::beside_bars([&] { std::cout << "saved" << std::endl; });
template <class Print>
void beside_bars(Print const& print) {
  auto& live = detail::LiveBars::instance();
  std::lock_guard const lock(live.mutex);
  Progress const* drawn = nullptr;
  for (auto const* bar : live.bars)
    if (bar->terminal_) drawn = bar;
  bool const was_there = drawn && live.width > 0;
  if (was_there) drawn->clear();
  print();
  if (was_there) drawn->draw();
}

/// A range whose loop has a bar.
template <class Range>
class ProgressRange {
 public:
  ProgressRange(Range&& range, ProgressOptions options)
      : range_(std::forward<Range>(range)), progress_(total_of(range_), std::move(options)) {}

  auto begin() {
    using std::begin, std::end;
    std::size_t done = 0;
    if constexpr (requires {
                    { range_.batches_done() } -> std::convertible_to<std::size_t>;
                  })
      done = range_.batches_done();  // a loader that goes on within an epoch
    progress_.go_on_from(done);
    return Iterator<decltype(begin(range_)), decltype(end(range_))>{begin(range_), end(range_), &progress_, done};
  }
  std::default_sentinel_t end() const { return {}; }
  Progress& bar() { return progress_; }

 private:
  template <class Inner, class End>
  struct Iterator {
    Inner inner;
    End last;
    Progress* progress;
    std::size_t done;

    decltype(auto) operator*() { return *inner; }
    Iterator& operator++() {
      ++inner;
      progress->update(++done);
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return inner == last; }
  };
  static std::optional<std::size_t> total_of(std::remove_reference_t<Range> const& range) {
    if constexpr (requires {
                    { range.length() } -> std::convertible_to<std::optional<std::size_t>>;
                  })
      return range.length();  // a loader's, which a stream may not know
    else if constexpr (requires { std::size(range); })
      return static_cast<std::size_t>(std::size(range));
    else
      return std::nullopt;
  }

  Range range_;  // a reference to one that has a name
  Progress progress_;
};

/// `for (auto& batch : weft::report::progress(loader, {.text = "epoch 1"}))`; of a fabric's ranks one:
/// `fabric.progress(loader, "epoch 1")`.
template <class Range>
ProgressRange<Range> progress(Range&& range, ProgressOptions options = {}) {
  return {std::forward<Range>(range), std::move(options)};
}

}  // namespace weft::report
