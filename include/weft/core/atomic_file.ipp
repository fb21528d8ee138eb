// core/atomic_file.ipp -- definitions of core/atomic_file.hpp.
#pragma once

#include <weft/core/atomic_file.hpp>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <weft/core/build.hpp>

namespace weft::inline v0::core {

WEFT_INLINE AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  if (path_.filename().empty()) fail<CheckpointError>("weft: cannot write ", path_.string(), ": give a file name");
  std::error_code why, no_link;
  if (std::filesystem::is_symlink(path_, no_link))
    path_ = std::filesystem::weakly_canonical(path_);  // the link stays, what it names is replaced
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), why);
  if (why) fail<CheckpointError>("weft: cannot make the directory ", path_.parent_path().string(), ": ", why.message());
  if (std::filesystem::is_directory(path_, why))
    fail<CheckpointError>("weft: cannot write ", path_.string(), ": it is a directory");
  if (auto const status = std::filesystem::status(path_, no_link);
      std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    fail<CheckpointError>("weft: cannot write ", path_.string(),
                          ": it is a device, a pipe or a socket, which a file would replace");
  temporary_ = path_;
  temporary_.replace_filename("." + path_.filename().string().substr(0, 200) + ".tmp-" + std::to_string(::getpid()) +
                              "-" + std::to_string(number_++));
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) refuse(errno);
}

WEFT_INLINE void AtomicFile::write(void const* bytes, std::size_t size) {
  auto const* from = static_cast<char const*>(bytes);
  while (size > 0) {
    ssize_t const written = ::write(file_, from, std::min(size, std::size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(errno);
    from += written;
    size -= static_cast<std::size_t>(written);
  }
}

WEFT_INLINE void AtomicFile::commit() {
  if (::fsync(file_) != 0) refuse(errno);
  if (::close(std::exchange(file_, -1)) != 0) refuse(errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) refuse(errno);
  temporary_.clear();
  std::filesystem::path const directory = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  if (int const handle = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); handle >= 0) {
    ::fsync(handle);  // some file systems cannot; the file is whole all the same
    ::close(handle);
  }
}

}  // namespace weft::core
