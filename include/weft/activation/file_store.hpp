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
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <weft/activation/offload.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::activation {

/// A file below a directory, one for each process and without a name: it is gone when the process is, however that
/// ends. Its space is given back as backward goes. Writes wait, reads ahead of backward do not.
class FilesBelow final : public ActivationStore {
 public:
  explicit FilesBelow(std::filesystem::path directory) : directory_(std::move(directory)) {
    if (!std::filesystem::is_directory(directory_))
      fail<ConfigurationError>("weft: activations cannot wait below ", directory_.string(),
                               ", which is no directory: create it first");
  }
  std::unique_ptr<Kept> keep(at::Tensor const& tensor) override {
    auto const bytes = tensor.cpu();
    auto const file = own_file();
    return std::make_unique<InFile>(file, file->write(bytes), tensor);
  }
  /// That wait there now, of this process.
  std::size_t bytes() const { return own_file()->bytes(); }

 private:
  class File {
   public:
    explicit File(std::filesystem::path directory)
        : directory_(std::move(directory)),
          descriptor_(::open(directory_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) {
      if (descriptor_ < 0 &&
          (errno == EOPNOTSUPP || errno == EISDIR)) {  // a file system where each file has a name at first
        auto name = (directory_ / "weft_activations_XXXXXX").string();
        descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
        if (descriptor_ >= 0) ::unlink(name.c_str());
      }
      if (descriptor_ < 0)
        fail<Error>("weft: activations cannot wait below ", directory_.string(),
                    ", where no file can be created: ", reason());
    }
    ~File() { ::close(descriptor_); }
    File(File const&) = delete;
    File& operator=(File const&) = delete;

    /// Returns where it lies.
    off_t write(at::Tensor const& tensor) {
      auto const size = tensor.nbytes();
      off_t begin = 0;
      {
        std::lock_guard const lock(mutex_);
        begin = std::exchange(end_, end_ + static_cast<off_t>(size));
        bytes_ += size;
      }
      auto const* const data = static_cast<char const*>(tensor.const_data_ptr());
      for (std::size_t done = 0; done < size;) {
        auto const count = ::pwrite(descriptor_, data + done, size - done, begin + static_cast<off_t>(done));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) {
          auto const why = reason();
          release(begin, size);
          fail<Error>("weft: ", size, " bytes of activations cannot be written below ", directory_.string(),
                      ", beside ", bytes(), " that wait there: ", why);
        }
        done += static_cast<std::size_t>(count);
      }
      return begin;
    }
    void read(void* to, std::size_t size, off_t begin) const {
      for (std::size_t done = 0; done < size;) {
        auto const count = ::pread(descriptor_, static_cast<char*>(to) + done, size - done,
                                   begin + static_cast<off_t>(done));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0)
          fail<Error>("weft: ", size, " bytes of activations cannot be read from below ", directory_.string(), ": ",
                      count < 0 ? reason() : "the file has been cut");
        done += static_cast<std::size_t>(count);
      }
    }
    void release(off_t begin, std::size_t size) noexcept {
      std::lock_guard const lock(mutex_);
      bytes_ -= size;
      if (bytes_ > 0)
        static_cast<void>(
            ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, static_cast<off_t>(size)));
      else
        static_cast<void>(::ftruncate(descriptor_, end_ = 0));  // what cannot be given back now is when the file is
    }
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
    InFile(std::shared_ptr<File> in, off_t at, at::Tensor const& tensor)
        : file(std::move(in)),
          begin(at),
          numel(tensor.numel()),
          nbytes(tensor.nbytes()),
          options(tensor.options().requires_grad(false)) {}
    ~InFile() override {
      let_go();
      file->release(begin, nbytes);
    }
    at::Tensor reload() override { return (arriving.valid() ? arriving.get() : read()).to(options.device()); }
    void fetch() override {
      if (!arriving.valid()) arriving = std::async(std::launch::async, [this] { return read(); });
    }
    void let_go() noexcept override { arriving = {}; }  // which waits until it has come

    at::Tensor read() const {
      auto tensor = at::empty({numel}, options.device(at::kCPU));
      file->read(tensor.mutable_data_ptr(), nbytes, begin);
      return tensor;
    }
    std::shared_ptr<File> file;
    off_t begin;
    int64_t numel;
    std::size_t nbytes;
    at::TensorOptions options;
    std::future<at::Tensor> arriving{};
  };

  /// A forked process would write where its parent does.
  std::shared_ptr<File> own_file() const {
    std::lock_guard const lock(mutex_);
    if (!file_ || owner_ != ::getpid()) {
      file_ = std::make_shared<File>(directory_);
      owner_ = ::getpid();
    }
    return file_;
  }

  std::filesystem::path directory_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<File> file_;
  mutable ::pid_t owner_ = 0;
};

}  // namespace weft::activation
