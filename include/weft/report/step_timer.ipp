// report/step_timer.ipp -- definitions of report/step_timer.hpp.
#pragma once

#include <weft/report/step_timer.hpp>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::report {

WEFT_INLINE std::string StepTimes::text() const {
  char line[256];
  std::snprintf(line, sizeof line, "%zu steps, ms: mean %.2f, median %.2f, p95 %.2f, %.2f to %.2f", steps, 1e3 * mean_s,
                1e3 * median_s, 1e3 * p95_s, 1e3 * min_s, 1e3 * max_s);
  std::string all = line;
  if (tokens > 0) {
    std::snprintf(line, sizeof line, "; %.0f tokens/s", tokens_per_s());
    all += line;
  }
  return all;
}

WEFT_INLINE StepTimes StepTimer::times(std::size_t window) const {
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

WEFT_INLINE std::vector<Span> StepTimer::spans(std::string_view name) const {
  std::vector<Span> all;
  for (auto const& step : steps_)
    all.push_back({std::string(name) + " " + std::to_string(all.size()), step.begin, step.end});
  return all;
}

WEFT_INLINE void StepTimer::synchronize() const {
  if (!options_.synchronize || options_.synchronize->is_cpu()) return;
  c10::impl::VirtualGuardImpl const device(options_.synchronize->type());
  device.synchronizeDevice(options_.synchronize->has_index() ? options_.synchronize->index()
                                                             : device.getDevice().index());
}

}  // namespace weft::report
