// core/error.hpp -- one way to fail.
// In: the parts of a sentence. Out: an exception whose kind says who can act on it and whose text says what to do.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include <weft/core/build.hpp>

namespace weft::inline v0 {

// What every error of weft derives from. The sentence starts with "weft:" and names rank, unit or parameter,
// what was found, what was expected, and what to write instead.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ConfigurationError : Error {  // options, composition, shapes: the program or its flags must change
  using Error::Error;
};
struct LaunchError : Error {  // a rank could not start, or ended early
  using Error::Error;
};
struct CommunicationError : Error {  // ranks disagreed, or lost each other
  using Error::Error;
};
struct CheckpointError : Error {  // a file is missing, partial, or holds something else
  using Error::Error;
};

namespace core {

template <class... Parts>
std::string message(Parts const&... parts) {
  std::ostringstream text;
  text << std::boolalpha;
  static_cast<void>((text << ... << parts));
  return std::move(text).str();
}

}  // namespace core

// weft::fail<ConfigurationError>("weft: mesh ", name, " needs ", n, " ranks: ...")
// By value: a literal is then a char const*, whatever its length, and sentences share their code.
template <class Kind = Error, class... Parts>
[[noreturn]] void fail(Parts... parts) {
  throw Kind(core::message(parts...));
}

}  // namespace weft
