// report/span.hpp -- a stretch of time with a name.
// In: two points of the steady clock. Out: what a trace shows as a bar.
#pragma once

#include <chrono>
#include <string>

namespace weft::inline v0::report {

struct Span {
  std::string name;
  std::chrono::steady_clock::time_point begin, end;
};

}  // namespace weft::report
