// report/log_file.hpp -- files that a run adds to.
// In: a root, a name and perhaps a version; bytes. Out: a directory that no other run has; a file that holds what was
// written, whatever ends the process.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <weft/core/error.hpp>

namespace weft::inline v0::report {

/// root/name/version_k. No version: the next one that is free. A version that exists, or a directory, is gone on with.
struct LogPlace {
  std::filesystem::path root = ".";
  std::string name = "weft_logs";
  std::optional<int> version{};
  std::filesystem::path directory{};  // this one, instead of all above

  /// Creating the directory takes the version: of two jobs that start at once each gets its own.
  std::filesystem::path make() const;
};

/// Added to at the end. What flush() has handed to the kernel outlives the process, however that ends.
class LogFile {
 public:
  LogFile() = default;
  LogFile(std::filesystem::path path, int flags, std::size_t flush_every);
  LogFile(LogFile&& other) noexcept;
  LogFile& operator=(LogFile&& other) noexcept;
  ~LogFile() {
    try {
      flush();
    } catch (Error const&) {  // said by the flush that the fabric does; here nobody listens
    }
    if (file_ >= 0) ::close(file_);
  }

  explicit operator bool() const { return file_ >= 0; }

  void append(std::string_view record) {
    pending_ += record;
    if (++num_pending_ >= flush_every_) flush();
  }
  void flush();

 private:
  [[noreturn]] void refuse(int why) const { fail("weft: cannot write ", path_.string(), ": ", std::strerror(why)); }

  std::filesystem::path path_;
  std::string pending_;
  std::size_t num_pending_ = 0;
  std::size_t flush_every_ = 1;
  int file_ = -1;
};

}  // namespace weft::report

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/report/log_file.ipp>
#endif
