// report/logger.hpp -- where the numbers of a run go.
// In: names, values, steps. Out: what a Logger makes of them: report/csv_logger.hpp, report/tensorboard_logger.hpp, or
// a class of the user's.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <ATen/core/Tensor.h>

namespace weft::inline v0::report {

/// What can be logged: a number, or a tensor with one element, on any device.
class Scalar {
 public:
  template <class Number>
    requires std::is_arithmetic_v<Number>
  Scalar(Number value) : value_(static_cast<double>(value)) {}
  Scalar(at::Tensor tensor) : value_(std::move(tensor)) {}

  /// Without waiting for a device: on ranks that only have to agree that this is one number.
  void check(std::string_view name) const;
  double value() const;

 private:
  std::variant<double, at::Tensor> value_;
};

using Metrics = std::map<std::string, double>;

/// A setting of the run.
class Hyperparameter {
 public:
  using Value = std::variant<bool, std::int64_t, double, std::string>;
  Hyperparameter(bool value) : value_(value) {}
  template <std::integral Number>
    requires(!std::same_as<Number, bool>)
  Hyperparameter(Number value) : value_(static_cast<std::int64_t>(value)) {}
  Hyperparameter(std::floating_point auto value) : value_(static_cast<double>(value)) {}
  Hyperparameter(std::string value) : value_(std::move(value)) {}
  Hyperparameter(char const* value) : value_(std::string(value)) {}

  Value const& value() const { return value_; }

 private:
  Value value_;
};
using Hyperparameters = std::map<std::string, Hyperparameter>;

/// Derive, override log, and hand it over: `fabric.add_logger(MyLogger())`. The fabric calls these functions on rank 0
/// alone, so every rank may own such an object, but its constructor should open nothing.
class Logger {
 public:
  virtual ~Logger() = default;

  /// Once, before all else: makes the place where this run is written, and returns its directory if it has one.
  virtual std::filesystem::path open() { return {}; }
  /// Values that belong together. Without a step: the next one, by this logger's count.
  virtual void log(Metrics const& metrics, std::optional<std::int64_t> step) = 0;
  virtual void log_hyperparameters(Hyperparameters const&) {}
  /// What is logged so far is to survive this process. When the fabric ends, and when an exception ends it.
  virtual void flush() {}

  /// What open() returned on rank 0, on every rank: for checkpoints beside the logs.
  std::filesystem::path const& directory() const { return directory_; }
  void set_directory(std::filesystem::path directory) { directory_ = std::move(directory); }

 protected:
  Logger() = default;
  Logger(Logger&&) = default;
  Logger& operator=(Logger&&) = default;

 private:
  std::filesystem::path directory_;
};

}  // namespace weft::report

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/report/logger.ipp>
#endif
