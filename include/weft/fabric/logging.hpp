// fabric/logging.hpp -- what a run tells about itself.
// In: numbers by name, texts, loops. Out: rows in the user's loggers, lines on the screen; of all ranks rank 0 alone
// writes.
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <weft/core/error.hpp>
#include <weft/report/logger.hpp>
#include <weft/report/progress.hpp>

namespace weft::inline v0::fabric {

/// The part of Fabric that logs and prints.
///
template <class Derived>
class Launching;

///   auto csv = fabric.add_logger(weft::report::CsvLogger({.root = "runs"}));
///   fabric.add_logger(weft::report::TensorBoardLogger({.directory = csv->directory()}));
///   fabric.log_dict({{"loss", loss}, {"lr", 3e-4}}, step);
template <class Derived>
class Logging {
 public:
  /// From here on the logger is told what is logged. Collective; every rank then knows its directory().
  template <class Type>
  std::shared_ptr<Type> add_logger(std::shared_ptr<Type> logger) {
    static_assert(std::derived_from<Type, report::Logger>,
                  "weft: add_logger: a logger derives from weft::report::Logger and overrides log(metrics, step)");
    if constexpr (std::derived_from<Type, report::Logger>) {
      if (!logger)
        fail<ConfigurationError>("weft: add_logger: the logger is null; pass weft::report::CsvLogger(), say");
      open(*logger);
      loggers_.push_back(logger);
    }
    return logger;
  }
  template <class Type>
  std::shared_ptr<Type> add_logger(Type logger) {
    return add_logger(std::make_shared<Type>(std::move(logger)));
  }
  std::vector<std::shared_ptr<report::Logger>> const& loggers() const { return loggers_; }
  /// The first one.
  report::Logger& logger() const {
    if (loggers_.empty())
      fail<ConfigurationError>(
          "weft: logger: this fabric has none; call fabric.add_logger(weft::report::CsvLogger()) first");
    return *loggers_.front();
  }

  /// A number, or a tensor with one element, for every logger. Any rank may call it; rank 0 writes its own value:
  /// all_reduce first what differs. Without a step each logger counts for itself.
  void log(std::string const& name, report::Scalar const& value, std::optional<std::int64_t> step = {}) {
    log_dict({{name, value}}, step);
  }
  /// Several that belong together: one row.
  void log_dict(std::initializer_list<std::pair<std::string, report::Scalar>> metrics,
                std::optional<std::int64_t> step = {}) {
    log_all(metrics, step);
  }
  /// The same from a container of pairs.
  template <class Pairs>
    requires requires(Pairs const& pairs) { report::Scalar(pairs.begin()->second); }
  void log_dict(Pairs const& metrics, std::optional<std::int64_t> step = {}) {
    log_all(metrics, step);
  }
  void log_hyperparameters(report::Hyperparameters const& hyperparameters) {
    if (!fabric().is_global_zero()) return;
    for (auto const& logger : loggers_) logger->log_hyperparameters(hyperparameters);
  }
  /// What is logged so far is to survive this process: for the moment before a risk. It happens by itself when the
  /// fabric ends.
  void flush_loggers() {
    if (!fabric().is_global_zero()) return;
    for (auto const& logger : loggers_) logger->flush();
  }

  /// Prints on global rank 0, and flushes; beside a progress bar, not into it.
  template <class... Parts>
  void print(Parts const&... parts) const {
    if (!fabric().is_global_zero()) return;
    report::beside_bars([&] {
      static_cast<void>((std::cout << ... << parts));
      std::cout << std::endl;
    });
  }
  /// The loop over `range` with a bar on global rank 0: `for (auto& batch : fabric.progress(loader, "epoch 1"))`.
  template <class Range>
  report::ProgressRange<Range> progress(Range&& range, std::string text = {}) const {
    return {std::forward<Range>(range),
            report::ProgressOptions{.text = std::move(text), .visible = fabric().is_global_zero()}};
  }

 private:
  friend Derived;
  friend Launching<Derived>;
  Logging() = default;
  Derived& fabric() { return static_cast<Derived&>(*this); }
  Derived const& fabric() const { return static_cast<Derived const&>(*this); }

  void open(report::Logger& logger) {
    std::pair<std::string, std::string> directory_and_error;
    if (fabric().is_global_zero()) try {
        directory_and_error.first = logger.open().string();
      } catch (std::exception const& failure) {
        directory_and_error.second = failure.what();
      }
    directory_and_error = fabric().broadcast(directory_and_error);  // all ranks learn of it: none goes on alone
    if (!directory_and_error.second.empty()) fail<ConfigurationError>(directory_and_error.second);
    logger.set_directory(directory_and_error.first);
  }

  template <class Pairs>
  void log_all(Pairs const& pairs, std::optional<std::int64_t> step) {
    for (auto const& [name, value] : pairs) report::Scalar(value).check(name);
    if (loggers_.empty() || !fabric().is_global_zero()) return;
    report::Metrics metrics;
    for (auto const& [name, value] : pairs) metrics.insert_or_assign(name, report::Scalar(value).value());
    for (auto const& logger : loggers_) logger->log(metrics, step);
  }

  /// On the way out after an exception, which is the one to be told: a logger's own is printed.
  void flush_after_failure(int rank) noexcept {
    if (rank != 0) return;
    for (auto const& logger : loggers_) try {
        logger->flush();
      } catch (std::exception const& failure) {
        std::cerr << "weft: a logger's last values are lost: " << failure.what() << std::endl;
      } catch (...) {
        std::cerr << "weft: a logger's last values are lost: an exception that is not a std::exception" << std::endl;
      }
  }

  std::vector<std::shared_ptr<report::Logger>> loggers_;
};

}  // namespace weft::fabric
