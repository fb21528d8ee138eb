// report/progress.ipp -- definitions of report/progress.hpp.
#pragma once

#include <weft/core/build.hpp>
#include <weft/report/progress.hpp>

namespace weft::inline v0::report::detail {

WEFT_INLINE std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; }));
}

WEFT_INLINE std::string cut(std::string text, std::size_t columns) {
  std::size_t used = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    if ((text[i] & 0xc0) != 0x80 && used++ == columns) return text.substr(0, i);
  return text;
}

WEFT_INLINE std::string clock_text(double seconds) {
  auto const whole = static_cast<long long>(seconds);
  char text[48];
  if (whole >= 3600)
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  else
    std::snprintf(text, sizeof text, "%lld:%02lld", whole / 60, whole % 60);
  return text;
}

}  // namespace weft::report::detail

namespace weft::inline v0::report {

WEFT_INLINE std::string ProgressState::count() const {
  return (text.empty() ? "" : text + " ") + std::to_string(done) + (total ? "/" + std::to_string(*total) : "");
}

WEFT_INLINE std::string ProgressState::speed() const {
  if (done <= before || seconds <= 0) return "";
  double const rate = static_cast<double>(done - before) / seconds;
  char text_of_rate[48];
  std::snprintf(text_of_rate, sizeof text_of_rate, rate >= 1 ? "%.1f/s" : "%.1f s each", rate >= 1 ? rate : 1 / rate);
  bool const ends = total && done < *total;
  return text_of_rate + (" " + detail::clock_text(ends ? static_cast<double>(*total - done) / rate : seconds)) +
         (ends ? " left" : "");
}

WEFT_INLINE std::string ProgressState::line(std::size_t columns) const {
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

WEFT_INLINE Progress::Progress(std::optional<std::size_t> total, ProgressOptions options)
    : options_(std::move(options)) {
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

WEFT_INLINE bool Progress::is_due(std::size_t done) const {
  if (!options_.visible || finished_) return false;
  auto const now = Clock::now();
  if (terminal_)
    return now - printed_ >= options_.interval || (state_.total && done >= *state_.total && done != state_.done);
  return now - printed_ >= options_.file_interval ||
         (state_.total && *state_.total > 0 && done * 10 / *state_.total > tenths_);
}

WEFT_INLINE void Progress::update(std::size_t done, std::string const& note) {
  if (!options_.visible || finished_) return;
  auto& live = detail::LiveBars::instance();
  std::lock_guard const lock(live.mutex);
  bool const due = is_due(done);
  state_.done = done;
  if (!due) return;
  state_.note = note;
  tell();
}

WEFT_INLINE void Progress::finish() {
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

WEFT_INLINE Progress* Progress::outermost() const {
  auto const& bars = detail::LiveBars::instance().bars;
  return *std::find_if(bars.begin(), bars.end(),
                       [this](Progress const* bar) { return bar->options_.out == options_.out; });
}

WEFT_INLINE std::size_t Progress::columns() const {
  ::winsize size{};
  // A line that fills the last column would wrap, and could not be rewritten.
  return ::ioctl(::fileno(options_.out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79u;
}

WEFT_INLINE void Progress::tell() {
  printed_ = Clock::now();
  told_ = state_.done;
  state_.seconds = std::chrono::duration<double>(printed_ - began_).count();
  if (state_.total && *state_.total > 0) tenths_ = state_.done * 10 / *state_.total;
  draw();
}

WEFT_INLINE void Progress::draw() const {
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
    std::fprintf(options_.out, "\r%s%s", line.c_str(),
                 std::string(live.width > width ? std::min(live.width, room) - std::min(width, room) : 0, ' ').c_str());
    live.width = width;
  }
  std::fflush(options_.out);
}

WEFT_INLINE void Progress::clear() const {
  auto& live = detail::LiveBars::instance();
  if (live.width == 0) return;
  std::fprintf(options_.out, "\r%s\r", std::string(std::min(live.width, columns()), ' ').c_str());
  std::fflush(options_.out);
  live.width = 0;
}

}  // namespace weft::report
