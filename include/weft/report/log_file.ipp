// report/log_file.ipp -- definitions of report/log_file.hpp.
#pragma once

#include <weft/report/log_file.hpp>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <weft/core/build.hpp>

namespace weft::inline v0::report {

WEFT_INLINE std::filesystem::path LogPlace::make() const {
  auto const all_versions = root / name;
  std::error_code why;
  auto const create = [&why](std::filesystem::path const& path, bool parents) {
    bool const created = parents ? std::filesystem::create_directories(path, why)
                                 : std::filesystem::create_directory(path, why);
    if (why) fail("weft: cannot make the directory ", path.string(), " for logs: ", why.message());
    return created;
  };
  auto const of_version = [&](int number) { return all_versions / ("version_" + std::to_string(number)); };
  if (!directory.empty() || version) {
    auto const path = directory.empty() ? of_version(*version) : directory;
    create(path, true);
    return path;
  }
  create(all_versions, true);
  int next = 0;
  for (auto const& entry : std::filesystem::directory_iterator(all_versions)) {
    auto const last = entry.path().filename().string();
    std::string_view const prefix = "version_";
    if (last.starts_with(prefix) && last.size() > prefix.size() && last.size() < prefix.size() + 9 &&
        last.find_first_not_of("0123456789", prefix.size()) == last.npos)
      next = std::max(next, std::stoi(last.substr(prefix.size())) + 1);
  }
  while (!create(of_version(next), false)) ++next;
  return of_version(next);
}

WEFT_INLINE LogFile::LogFile(std::filesystem::path path, int flags, std::size_t flush_every)
    : path_(std::move(path)), flush_every_(flush_every) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | flags, 0666);
  if (file_ < 0) refuse(errno);
}

WEFT_INLINE LogFile::LogFile(LogFile&& other) noexcept
    : path_(std::move(other.path_)),
      pending_(std::move(other.pending_)),
      num_pending_(std::exchange(other.num_pending_, 0)),
      flush_every_(other.flush_every_),
      file_(std::exchange(other.file_, -1)) {}

WEFT_INLINE LogFile& LogFile::operator=(LogFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(pending_, other.pending_);
  std::swap(num_pending_, other.num_pending_);
  std::swap(flush_every_, other.flush_every_);
  std::swap(file_, other.file_);
  return *this;
}

WEFT_INLINE void LogFile::flush() {
  std::string_view rest = pending_;
  struct stat now{};
  if (!rest.empty() && ::fstat(file_, &now) == 0 && S_ISREG(now.st_mode) && now.st_nlink == 0)
    fail("weft: cannot write ", path_.string(),
         ": the file was replaced or removed since it was opened; does another logger write there?");
  while (!rest.empty()) {
    ssize_t const written = ::write(file_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      pending_.erase(0, pending_.size() - rest.size());
      refuse(errno);
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  pending_.clear();
  num_pending_ = 0;
}

}  // namespace weft::report
