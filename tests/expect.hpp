// expect.hpp -- a check inside of a rank, where Catch2's macros, which belong to the parent, say nothing.
// In: a condition and what it means. Out: an exception that the launcher reports.
#pragma once

#include <stdexcept>
#include <string>

namespace test {

inline void expect(bool holds, std::string const& what) {
  if (!holds) throw std::runtime_error("expected: " + what);
}

}  // namespace test
