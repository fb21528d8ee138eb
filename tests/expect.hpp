// expect.hpp -- checks by exceptions.
// In: a condition and what it means, or a function. Out: an exception, which the launcher reports of a rank, where
// Catch2's macros, which belong to the parent, say nothing; what a function threw.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace test {

inline void expect(bool holds, std::string const& what) {
  if (!holds) throw std::runtime_error("expected: " + what);
}

template <class Function>
std::string message_of(Function const& function) {
  try {
    function();
  } catch (std::exception const& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace test
