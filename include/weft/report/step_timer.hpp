// report/step_timer.hpp -- how long steps take.
// In: the begin and the end of each step, and how much it worked through. Out: mean, median, 95th percentile, tokens a
// second, of all steps or of the last.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <weft/core/error.hpp>
#include <weft/report/span.hpp>

namespace weft::inline v0::report {

struct StepTimes {
  std::size_t steps = 0;
  double mean_s = 0;
  double median_s = 0;
  double p95_s = 0;  // the nearest rank: a step that was measured
  double min_s = 0;
  double max_s = 0;
  double total_s = 0;
  double tokens = 0;
  double tokens_per_s() const { return total_s > 0 ? tokens / total_s : 0; }
  double steps_per_s() const { return total_s > 0 ? static_cast<double>(steps) / total_s : 0; }

  /// "100 steps, ms: mean 12.10, median 12.00, p95 13.30, 9.80 to 15.00; 84512 tokens/s"
  std::string text() const {
    char line[256];
    std::snprintf(line, sizeof line, "%zu steps, ms: mean %.2f, median %.2f, p95 %.2f, %.2f to %.2f", steps,
                  1e3 * mean_s, 1e3 * median_s, 1e3 * p95_s, 1e3 * min_s, 1e3 * max_s);
    std::string all = line;
    if (tokens > 0) {
      std::snprintf(line, sizeof line, "; %.0f tokens/s", tokens_per_s());
      all += line;
    }
    return all;
  }
};

struct StepTimerOptions {
  std::size_t warm_up = 0;  // first steps that are left out
  /// Waits for this device at both ends of each step. Absent: a step ends when the host is through with it, which on
  /// CUDA is before the device is.
  std::optional<c10::Device> synchronize{};
};

///   weft::report::StepTimer timer({.warm_up = 10});
///   for (auto& batch : loader) {
///     auto const step = timer.step(batch.data.numel());
///     ...
///   }
///   fabric.print(timer.times().text());
class StepTimer {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StepTimer(StepTimerOptions options = {}) : options_(std::move(options)) {}

  /// One step: from here to the end of the scope. One that an exception ends does not count.
  class [[nodiscard]] Step {
   public:
    Step(StepTimer& timer, double tokens) : timer_(timer), tokens_(tokens) { timer_.begin(); }
    ~Step() noexcept(false) {  // a device that is waited for may have failed
      if (std::uncaught_exceptions() == exceptions_) timer_.end(tokens_);
    }
    Step(Step const&) = delete;
    Step& operator=(Step const&) = delete;

   private:
    StepTimer& timer_;
    double tokens_;
    int exceptions_ = std::uncaught_exceptions();
  };
  Step step(double tokens = 0) { return {*this, tokens}; }

  /// The same by hand.
  void begin() {
    synchronize();
    began_ = Clock::now();
  }
  void end(double tokens = 0) {
    synchronize();
    if (num_ended_++ >= options_.warm_up) add(began_, Clock::now(), tokens);
  }
  /// A step that was measured elsewhere.
  void add(Clock::time_point begin, Clock::time_point end, double tokens = 0) {
    if (end < begin) fail<ConfigurationError>("weft: StepTimer: a step ends before it begins");
    steps_.push_back({begin, end, tokens});
  }

  /// Of the last `window` steps; of all if there are fewer.
  StepTimes times(std::size_t window = std::numeric_limits<std::size_t>::max()) const {
    StepTimes times{.steps = std::min(window, steps_.size())};
    if (times.steps == 0) return times;
    std::vector<double> seconds;
    for (auto step = steps_.end() - static_cast<std::ptrdiff_t>(times.steps); step != steps_.end(); ++step) {
      seconds.push_back(std::chrono::duration<double>(step->end - step->begin).count());
      times.tokens += step->tokens;
    }
    std::sort(seconds.begin(), seconds.end());
    auto const count = seconds.size();
    times.total_s = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    times.mean_s = times.total_s / static_cast<double>(count);
    times.median_s = (seconds[(count - 1) / 2] + seconds[count / 2]) / 2;
    times.p95_s = seconds[(95 * count + 99) / 100 - 1];
    times.min_s = seconds.front();
    times.max_s = seconds.back();
    return times;
  }

  /// For a trace beside the collectives: report/chrome_trace.hpp.
  std::vector<Span> spans(std::string_view name = "step") const {
    std::vector<Span> all;
    for (auto const& step : steps_)
      all.push_back({std::string(name) + " " + std::to_string(all.size()), step.begin, step.end});
    return all;
  }

 private:
  struct Measured {
    Clock::time_point begin, end;
    double tokens;
  };

  void synchronize() const {
    if (!options_.synchronize || options_.synchronize->is_cpu()) return;
    c10::impl::VirtualGuardImpl const device(options_.synchronize->type());
    device.synchronizeDevice(options_.synchronize->has_index() ? options_.synchronize->index()
                                                               : device.getDevice().index());
  }

  StepTimerOptions options_;
  std::vector<Measured> steps_;
  std::size_t num_ended_ = 0;
  Clock::time_point began_{};
};

}  // namespace weft::report
