// core/atomic_file.hpp -- a file that is there whole or not at all.
// In: bytes, in order. Out: after commit(), the file under its name and on the disk; before, the old one untouched.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>

#include <weft/core/error.hpp>

namespace weft::inline v0::core {

class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(AtomicFile const&) = delete;
  AtomicFile& operator=(AtomicFile const&) = delete;
  ~AtomicFile() {
    if (file_ >= 0) ::close(file_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }

  void write(void const* bytes, std::size_t size);

  // The rename makes the file visible, the two syncs make it survive a crash.
  void commit();

 private:
  [[noreturn]] void refuse(int why) const {
    fail<CheckpointError>("weft: cannot write ", path_.string(), ": ", std::strerror(why));
  }

  [[gnu::visibility("default")]] static inline std::atomic<unsigned> number_ =
      0;  // one count for all shared objects of a process
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int file_ = -1;
};

}  // namespace weft::core

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/core/atomic_file.ipp>
#endif
