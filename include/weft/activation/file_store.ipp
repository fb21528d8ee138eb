// activation/file_store.ipp -- definitions of activation/file_store.hpp.
#pragma once

#include <weft/activation/file_store.hpp>

#include <utility>

#include <ATen/ops/empty.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::activation {

WEFT_INLINE FilesBelow::FilesBelow(std::filesystem::path directory) : directory_(std::move(directory)) {
  if (!std::filesystem::is_directory(directory_))
    fail<ConfigurationError>("weft: activations cannot wait below ", directory_.string(),
                             ", which is no directory: create it first");
}

WEFT_INLINE auto FilesBelow::keep(at::Tensor const& tensor) -> std::unique_ptr<Kept> {
  auto const bytes = tensor.cpu();
  auto const file = own_file();
  return std::make_unique<InFile>(file, file->write(bytes), tensor);
}

WEFT_INLINE FilesBelow::File::File(std::filesystem::path directory)
    : directory_(std::move(directory)), descriptor_(::open(directory_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) {
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

WEFT_INLINE off_t FilesBelow::File::write(at::Tensor const& tensor) {
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
      fail<Error>("weft: ", size, " bytes of activations cannot be written below ", directory_.string(), ", beside ",
                  bytes(), " that wait there: ", why);
    }
    done += static_cast<std::size_t>(count);
  }
  return begin;
}

WEFT_INLINE void FilesBelow::File::read(void* to, std::size_t size, off_t begin) const {
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

WEFT_INLINE void FilesBelow::File::release(off_t begin, std::size_t size) noexcept {
  std::lock_guard const lock(mutex_);
  bytes_ -= size;
  if (bytes_ > 0)
    static_cast<void>(
        ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, static_cast<off_t>(size)));
  else
    static_cast<void>(::ftruncate(descriptor_, end_ = 0));  // what cannot be given back now is when the file is
}

WEFT_INLINE FilesBelow::InFile::InFile(std::shared_ptr<File> in, off_t at, at::Tensor const& tensor)
    : file(std::move(in)),
      begin(at),
      numel(tensor.numel()),
      nbytes(tensor.nbytes()),
      options(tensor.options().requires_grad(false)) {}

WEFT_INLINE at::Tensor FilesBelow::InFile::read() const {
  auto tensor = at::empty({numel}, options.device(at::kCPU));
  file->read(tensor.mutable_data_ptr(), nbytes, begin);
  return tensor;
}

WEFT_INLINE auto FilesBelow::own_file() const -> std::shared_ptr<File> {
  std::lock_guard const lock(mutex_);
  if (!file_ || owner_ != ::getpid()) {
    file_ = std::make_shared<File>(directory_);
    owner_ = ::getpid();
  }
  return file_;
}

}  // namespace weft::activation
