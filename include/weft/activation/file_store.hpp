// activation/file_store.hpp -- activations that wait for backward on a disk.
// In: a directory. Out: a store of activations for offload_activations_to(...), whose reads run ahead of backward in
// the background.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include <ATen/core/Tensor.h>

#include <weft/activation/offload.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::activation {

/// A file below a directory, one for each process and without a name: it is gone when the process is, however that
/// ends. Its space is given back as backward goes. Writes wait, reads ahead of backward do not.
class FilesBelow final : public ActivationStore {
 public:
  explicit FilesBelow(std::filesystem::path directory);
  std::unique_ptr<Kept> keep(at::Tensor const& tensor) override;
  /// That wait there now, of this process.
  std::size_t bytes() const { return own_file()->bytes(); }

 private:
  class File {
   public:
    explicit File(std::filesystem::path directory);
    ~File() { ::close(descriptor_); }
    File(File const&) = delete;
    File& operator=(File const&) = delete;

    /// Returns where it lies.
    off_t write(at::Tensor const& tensor);
    void read(void* to, std::size_t size, off_t begin) const;
    void release(off_t begin, std::size_t size) noexcept;
    std::size_t bytes() const {
      std::lock_guard const lock(mutex_);
      return bytes_;
    }

   private:
    static std::string reason() { return std::generic_category().message(errno); }

    std::filesystem::path directory_;
    int descriptor_;
    mutable std::mutex mutex_;
    off_t end_ = 0;
    std::size_t bytes_ = 0;
  };

  struct InFile final : Kept {
    InFile(std::shared_ptr<File> in, off_t at, at::Tensor const& tensor);
    ~InFile() override {
      let_go();
      file->release(begin, nbytes);
    }
    at::Tensor reload() override { return (arriving.valid() ? arriving.get() : read()).to(options.device()); }
    void fetch() override {
      if (!arriving.valid()) arriving = std::async(std::launch::async, [this] { return read(); });
    }
    void let_go() noexcept override { arriving = {}; }  // which waits until it has come

    at::Tensor read() const;
    std::shared_ptr<File> file;
    off_t begin;
    int64_t numel;
    std::size_t nbytes;
    at::TensorOptions options;
    std::future<at::Tensor> arriving{};
  };

  /// A forked process would write where its parent does.
  std::shared_ptr<File> own_file() const;

  std::filesystem::path directory_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<File> file_;
  mutable ::pid_t owner_ = 0;
};

}  // namespace weft::activation

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/activation/file_store.ipp>
#endif
