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
std::size_t columns_of(std::string_view text);
std::string cut(std::string text, std::size_t columns);

std::string clock_text(double seconds);

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
  std::string count() const;
  /// "12.1/s 0:05 left"; at the end, and where the total is not known, the time that has passed.
  std::string speed() const;
  /// At most `columns` wide; the bar takes what the rest leaves, 30 at most.
  std::string line(std::size_t columns) const;
};

/// Of loops inside of each other each has one: the inner one's line begins with how far the outer ones are.
class Progress {
 public:
  /// Without a total there is a count and its speed.
  explicit Progress(std::optional<std::size_t> total, ProgressOptions options = {});
  ~Progress() { finish(); }
  Progress(Progress const&) = delete;
  Progress& operator=(Progress const&) = delete;

  /// Whether update(done) would print: the note may cost something to make.
  bool is_due(std::size_t done) const;

  /// What was done before this began, which says nothing of its speed.
  void go_on_from(std::size_t done) { state_.before = state_.done = done; }

  void update(std::size_t done, std::string const& note = {});

  /// The last line, and the end of it, so that something else can be printed.
  void finish();

  ProgressState const& state() const { return state_; }

 private:
  template <class Print>
  friend void beside_bars(Print const& print);
  using Clock = std::chrono::steady_clock;

  Progress* outermost() const;
  std::size_t columns() const;

  void tell();
  /// The line of this bar behind the counts of those around it.
  void draw() const;
  void clear() const;

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

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/report/progress.ipp>
#endif
