// report/csv_logger.hpp -- a run's numbers as a table that everything reads.
// In: metrics by name and step. Out: metrics.csv with a column for each name, and hparams.json, in a directory of the
// run's own.
#pragma once

#include <fcntl.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/core/atomic_file.hpp>
#include <weft/report/log_file.hpp>
#include <weft/report/logger.hpp>

namespace weft::inline v0::report {

struct CsvOptions {
  std::filesystem::path root = ".";
  std::string name = "weft_logs";
  std::optional<int> version{};       // absent: the next one that is free; one that exists is gone on with
  std::filesystem::path directory{};  // where to write, instead of root/name/version_k
  std::string prefix{};               // of all names: "prefix-name"
  std::size_t flush_every = 1;        // rows; 1: a killed process loses none
};

namespace detail {

using CsvRow = std::vector<std::string>;

/// Rows of cells, in quotes or not. What is behind the last end of line is no row: its writing was cut off.
std::vector<CsvRow> read_csv(std::string_view text);

std::string csv_line(CsvRow const& row);

}  // namespace detail

/// One call of log, one row. Columns are sorted by name, `step` among them. A new name makes the file anew with one
/// column more, beside the old one, which then is replaced: at every moment there is a whole table under the name.
///
///   auto csv = fabric.add_logger(weft::report::CsvLogger({.root = "runs", .name = "lm"}));  //
///   runs/lm/version_0/metrics.csv
class CsvLogger final : public Logger {
 public:
  explicit CsvLogger(CsvOptions options = {}) : options_(std::move(options)) {}

  std::filesystem::path open() override;

  void log(Metrics const& metrics, std::optional<std::int64_t> step) override;

  void log_hyperparameters(Hyperparameters const& hyperparameters) override;

  void flush() override { file_.flush(); }

  std::size_t num_rows() const { return num_rows_; }  // with those of earlier runs

 private:
  std::filesystem::path table() const { return folder_ / "metrics.csv"; }
  std::string named(std::string const& name) const {
    return options_.prefix.empty() ? name : options_.prefix + "-" + name;
  }
  static std::size_t position_in(std::vector<std::string> const& columns, std::string const& column) {
    return static_cast<std::size_t>(std::lower_bound(columns.begin(), columns.end(), column) - columns.begin());
  }
  static void replace(std::filesystem::path const& path, std::string const& text) {
    core::AtomicFile file(path);
    file.write(text.data(), text.size());
    file.commit();
  }
  void append_from_here() { file_ = LogFile(table(), 0, options_.flush_every); }

  std::string text() const;
  std::vector<detail::CsvRow> rows_of(std::string const& text) const;
  void go_on();

  void widen(std::vector<std::string> columns);
  void rewrite(std::vector<detail::CsvRow> const& rows, std::vector<std::string> columns);

  CsvOptions options_;
  std::filesystem::path folder_;
  std::vector<std::string> columns_;
  std::size_t num_rows_ = 0;
  LogFile file_;
  Hyperparameters hyperparameters_;
};

}  // namespace weft::report

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/report/csv_logger.ipp>
#endif
