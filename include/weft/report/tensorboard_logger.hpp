// report/tensorboard_logger.hpp -- a run's numbers as TensorBoard shows them.
// In: metrics, texts, settings. Out: an event file in a directory of the run's own, for `tensorboard --logdir root`.
#pragma once

#include <fcntl.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <weft/report/event_file.hpp>
#include <weft/report/log_file.hpp>
#include <weft/report/logger.hpp>

namespace weft::inline v0::report {

struct TensorBoardOptions {
  std::filesystem::path root = ".";
  std::string name = "weft_logs";
  std::optional<int> version{};  // absent: the next one that is free; one that exists gets a file more, which
                                 // TensorBoard shows as one run
  std::filesystem::path
      directory{};       // where to write, instead of root/name/version_k: csv->directory() puts both logs in one
  std::string prefix{};  // of all names: "prefix-name"
  std::size_t flush_every = 1;  // records; 1: a killed process loses none
};

/// Values are kept in fp32, as TensorBoard does; nan and inf are kept.
class TensorBoardLogger final : public Logger {
 public:
  explicit TensorBoardLogger(TensorBoardOptions options = {}) : options_(std::move(options)) {}

  std::filesystem::path open() override;

  void log(Metrics const& metrics, std::optional<std::int64_t> step) override;
  void log_hyperparameters(Hyperparameters const& hyperparameters) override;
  /// Markdown. Any rank may call it; rank 0 writes.
  void log_text(std::string const& name, std::string_view text, std::int64_t step = 0) {
    if (!file_) return;
    Message summary;
    event::add_text(summary, named(name), text);
    write(summary, step);
  }

  void flush() override { file_.flush(); }

 private:
  static double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  std::string named(std::string const& name) const {
    return options_.prefix.empty() ? name : options_.prefix + "-" + name;
  }
  void write(Message const& summary, std::int64_t step) {
    file_.append(tf_record(event::of_summary(now(), step, summary).bytes()));
  }

  [[gnu::visibility("default")]] static inline std::atomic<unsigned> number_ =
      0;  // of all shared objects of a process, whose files may lie in one folder
  TensorBoardOptions options_;
  LogFile file_;
  std::int64_t num_logged_ = 0;
};

}  // namespace weft::report

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/report/tensorboard_logger.ipp>
#endif
