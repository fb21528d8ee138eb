// report/csv_logger.ipp -- definitions of report/csv_logger.hpp.
#pragma once

#include <weft/report/csv_logger.hpp>

#include <fstream>
#include <variant>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/report/json.hpp>

namespace weft::inline v0::report::detail {

WEFT_INLINE std::vector<CsvRow> read_csv(std::string_view text) {
  std::vector<CsvRow> rows;
  CsvRow row;
  std::string cell;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char const letter = text[i];
    if (quoted) {
      if (letter == '"' && i + 1 < text.size() && text[i + 1] == '"')
        ++i;
      else if (letter == '"') {
        quoted = false;
        continue;
      }
      cell += letter;
    } else if (letter == '"') {
      quoted = true;
    } else if (letter == ',' || letter == '\n') {
      row.push_back(std::exchange(cell, {}));
      if (letter == '\n') rows.push_back(std::exchange(row, {}));
    } else if (letter != '\r') {
      cell += letter;
    }
  }
  return rows;
}

WEFT_INLINE std::string csv_line(CsvRow const& row) {
  std::string line;
  for (auto const& cell : row) {
    if (&cell != row.data()) line += ',';
    if (cell.find_first_of(",\"\r\n") == cell.npos) {
      line += cell;
      continue;
    }
    line += '"';
    for (char const letter : cell) line.append(letter == '"' ? 2 : 1, letter);
    line += '"';
  }
  return line + "\n";
}

}  // namespace weft::report::detail

namespace weft::inline v0::report {

WEFT_INLINE std::filesystem::path CsvLogger::open() {
  folder_ = LogPlace{options_.root, options_.name, options_.version, options_.directory}.make();
  if (std::filesystem::exists(table())) go_on();
  return folder_;
}

WEFT_INLINE void CsvLogger::log(Metrics const& metrics, std::optional<std::int64_t> step) {
  auto columns = columns_;
  if (columns.empty()) columns.push_back("step");
  for (auto const& [name, value] : metrics) columns.push_back(named(name));
  std::sort(columns.begin(), columns.end());
  columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
  if (columns != columns_) widen(std::move(columns));
  detail::CsvRow row(columns_.size());
  for (auto const& [name, value] : metrics) row[position_in(columns_, named(name))] = shortest(value);
  row[position_in(columns_, "step")] = std::to_string(step.value_or(static_cast<std::int64_t>(num_rows_)));
  file_.append(detail::csv_line(row));
  ++num_rows_;
}

WEFT_INLINE void CsvLogger::log_hyperparameters(Hyperparameters const& hyperparameters) {
  for (auto const& [name, value] : hyperparameters) hyperparameters_.insert_or_assign(name, value);
  std::string json = "{";
  for (auto const& [name, value] : hyperparameters_) {
    json += (json.size() > 1 ? ",\n  " : "\n  ") + json_text(name) + ": ";
    std::visit(
        [&json]<class Value>(Value const& it) {
          if constexpr (std::is_same_v<Value, bool>)
            json += it ? "true" : "false";
          else if constexpr (std::is_same_v<Value, std::int64_t>)
            json += std::to_string(it);
          else if constexpr (std::is_same_v<Value, double>)
            json += json_number(it);
          else
            json += json_text(it);
        },
        value.value());
  }
  json += "\n}\n";
  replace(folder_ / "hparams.json", json);
}

WEFT_INLINE std::string CsvLogger::text() const {
  std::ifstream file(table(), std::ios::binary);
  if (!file) fail("weft: cannot read ", table().string(), ", whose rows are to be kept");
  return {std::istreambuf_iterator<char>(file), {}};
}

WEFT_INLINE std::vector<detail::CsvRow> CsvLogger::rows_of(std::string const& text) const {
  auto rows = detail::read_csv(text);
  std::size_t line = 0;
  for (auto const& row : rows) {
    ++line;
    if (row.size() != rows.front().size() ||
        std::find(rows.front().begin(), rows.front().end(), "step") == rows.front().end())
      fail<ConfigurationError>(
          "weft: CsvLogger: cannot go on with ", table().string(), ", which is no table of metrics: ",
          row.size() != rows.front().size()
              ? core::message("row ", line, " has ", row.size(), " cells under ", rows.front().size(), " columns")
              : "no column is named step",
          "; choose another version or directory");
  }
  return rows;
}

WEFT_INLINE void CsvLogger::go_on() {
  auto const whole = text();
  auto const rows = rows_of(whole);
  if (rows.empty()) return;
  num_rows_ = rows.size() - 1;
  columns_ = rows.front();
  if (whole.back() != '\n' || !std::is_sorted(columns_.begin(), columns_.end())) {
    auto sorted = columns_;
    std::sort(sorted.begin(), sorted.end());
    rewrite(rows, std::move(sorted));
  } else {
    append_from_here();
  }
}

WEFT_INLINE void CsvLogger::widen(std::vector<std::string> columns) {
  if (file_) file_.flush();
  rewrite(columns_.empty() ? std::vector<detail::CsvRow>() : rows_of(text()), std::move(columns));
}

WEFT_INLINE void CsvLogger::rewrite(std::vector<detail::CsvRow> const& rows, std::vector<std::string> columns) {
  std::string wider = detail::csv_line(columns);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    detail::CsvRow row(columns.size());
    for (std::size_t cell = 0; cell < rows[i].size(); ++cell) row[position_in(columns, rows[0][cell])] = rows[i][cell];
    wider += detail::csv_line(row);
  }
  replace(table(), wider);
  append_from_here();
  columns_ = std::move(columns);  // last: a table that cannot be written keeps its old ones
}

}  // namespace weft::report
