// launch/outcome.hpp -- how a launched job ended.
// In: rank 0's value, or the failures. Out: the value, or an exit code and messages by rank.
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <weft/core/error.hpp>

namespace weft::inline v0 {

/// One rank that did not finish. The first of a list is the one that failed first; the others usually followed.
struct Failure {
  int rank = 0;
  std::string message;
  int exit_code = 1;  // what the rank exited with, 128 + n for signal n
};

/// What `launch` returns: the value that the function returned on rank 0, or each failed rank with its message.
template <class Result>
class [[nodiscard]] Outcome {
 public:
  using Value = std::conditional_t<std::is_void_v<Result>, std::monostate, Result>;

  explicit Outcome(Value value) : value_(std::move(value)) {}
  explicit Outcome(std::vector<Failure> failures) : failures_(std::move(failures)) {}

  explicit operator bool() const { return value_.has_value(); }
  std::vector<Failure> const& failures() const { return failures_; }

  /// The value of rank 0. Throws LaunchError with the first failure if the job failed.
  Value& value() {
    if (!value_) fail<LaunchError>(failures_.front().message);
    return *value_;
  }
  Value& operator*() { return value(); }
  Value* operator->() { return &value(); }

  /// For `return outcome.exit_code();` in main: 0, or the exit code of the rank that failed first.
  int exit_code() const { return value_ ? 0 : failures_.front().exit_code; }

 private:
  std::optional<Value> value_;
  std::vector<Failure> failures_;
};

}  // namespace weft
