// report/step_timer.hpp -- how long steps take.
// In: the begin and the end of each step, and how much it worked through. Out: mean, median, 95th percentile, tokens a
// second, of all steps or of the last.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

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
  std::string text() const;
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
  StepTimes times(std::size_t window = std::numeric_limits<std::size_t>::max()) const;

  /// For a trace beside the collectives: report/chrome_trace.hpp.
  std::vector<Span> spans(std::string_view name = "step") const;

 private:
  struct Measured {
    Clock::time_point begin, end;
    double tokens;
  };

  void synchronize() const;

  StepTimerOptions options_;
  std::vector<Measured> steps_;
  std::size_t num_ended_ = 0;
  Clock::time_point began_{};
};

}  // namespace weft::report

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/report/step_timer.ipp>
#endif
