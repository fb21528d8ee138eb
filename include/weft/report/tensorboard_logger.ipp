// report/tensorboard_logger.ipp -- definitions of report/tensorboard_logger.hpp.
#pragma once

#include <weft/report/tensorboard_logger.hpp>

#include <cstdio>
#include <variant>

#include <weft/core/build.hpp>

namespace weft::inline v0::report {

WEFT_INLINE std::filesystem::path TensorBoardLogger::open() {
  auto const folder = LogPlace{options_.root, options_.name, options_.version, options_.directory}.make();
  char host[256] = "localhost", name[400];
  ::gethostname(host, sizeof host - 1);
  // TensorBoard takes the files of a directory in the order of their names: time comes first.
  std::snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%d.%u", static_cast<long long>(now()), host,
                static_cast<int>(::getpid()), number_++);
  file_ = LogFile(folder / name, O_EXCL, options_.flush_every);
  file_.append(tf_record(event::file_version(now()).bytes()));
  return folder;
}

WEFT_INLINE void TensorBoardLogger::log(Metrics const& metrics, std::optional<std::int64_t> step) {
  Message summary;
  for (auto const& [name, value] : metrics) event::add_scalar(summary, named(name), value);
  write(summary, step.value_or(num_logged_));
  ++num_logged_;
}

WEFT_INLINE void TensorBoardLogger::log_hyperparameters(Hyperparameters const& hyperparameters) {
  Message settings;
  for (auto const& [name, hyperparameter] : hyperparameters) {
    Message setting;
    std::visit(
        [&setting]<class Value>(Value const& it) {
          if constexpr (std::is_same_v<Value, bool>)
            setting.boolean(4, it);
          else if constexpr (std::is_same_v<Value, std::string>)
            setting.text(3, it);
          else
            setting.real(2, static_cast<double>(it));
        },
        hyperparameter.value());
    settings.message(1, Message().text(1, name).message(2, setting));
  }
  Message summary;
  event::add_session_start(summary, settings.real(5, now()));
  write(summary, 0);
}

}  // namespace weft::report
