// checkpoints/safetensors.ipp -- definitions of checkpoints/safetensors.hpp.
#pragma once

#include <weft/checkpoints/safetensors.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include <ATen/ops/empty.h>

#include <weft/core/atomic_file.hpp>
#include <weft/core/build.hpp>

namespace weft::inline v0::checkpoints {

WEFT_INLINE void save_safetensors(std::string const& path, NamedTensors const& tensors,
                                  std::map<std::string, std::string> metadata) {
  SafetensorsHeader header{{}, std::move(metadata)};
  std::map<std::string_view, at::Tensor const*> by_name;
  for (auto const& named : tensors) {
    std::string const& name = named.first;
    at::Tensor const& tensor = named.second;
    auto refuse = [&](auto const&... parts) {
      fail<CheckpointError>("weft: cannot write ", path, ": tensor ", name, " ", parts...);
    };
    if (!tensor.defined()) refuse("is undefined");
    if (name == "__metadata__") refuse("has the name that the format keeps for itself");
    if (!by_name.emplace(name, &tensor).second) refuse("is there twice");
    if (tensor.layout() != at::kStrided)
      refuse("has layout ", tensor.layout(), ", and the format holds dense tensors only");
    auto const* type = std::find_if(safetensors_scalar_types.begin(), safetensors_scalar_types.end(),
                                    [&](auto const& known) { return known.second == tensor.scalar_type(); });
    if (type == safetensors_scalar_types.end())
      refuse("has dtype ", tensor.scalar_type(), ", which the format has no name for");
    header.entries.push_back({.name = name,
                              .dtype = std::string(type->first),
                              .shape = tensor.sizes().vec(),
                              .begin = 0,
                              .end = tensor.nbytes()});
  }
  // The reference writer's order: large items first, which aligns each tensor to its item.
  std::sort(header.entries.begin(), header.entries.end(), [](auto const& a, auto const& b) {
    return std::make_tuple(dtype_rank(b.dtype), std::string_view(a.name)) <
           std::make_tuple(dtype_rank(a.dtype), std::string_view(b.name));
  });
  std::uint64_t reached = 0;
  for (auto& entry : header.entries) {
    entry.begin = reached;
    entry.end = reached += entry.end;
  }

  std::string const text = header_text(header);
  if (text.size() > max_header_bytes)
    fail<CheckpointError>("weft: cannot write ", path, ": its header would have ", text.size(),
                          " bytes, and readers take ", max_header_bytes);
  auto const text_bytes = static_cast<std::uint64_t>(text.size());
  core::AtomicFile file(path);
  file.write(&text_bytes, sizeof text_bytes);
  file.write(text.data(), text.size());
  for (auto const& entry : header.entries) {
    at::Tensor const on_host = by_name.at(entry.name)->detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
    file.write(on_host.const_data_ptr(), on_host.nbytes());
  }
  file.commit();
}

WEFT_INLINE SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) refuse(std::strerror(errno));
  try {
    read_header();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

WEFT_INLINE at::Tensor SafetensorsFile::load(SafetensorsEntry const& entry) const {
  at::Tensor tensor = at::empty(entry.shape, safetensors_scalar_types[dtype_rank(entry.dtype)].second);
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  read(bytes, entry.end - entry.begin, data_begin_ + entry.begin);
  if (entry.dtype == "BOOL" && std::any_of(bytes, bytes + tensor.nbytes(), [](unsigned char byte) { return byte > 1; }))
    refuse("tensor ", entry.name, " has dtype BOOL, but a byte that is neither 0 nor 1");
  return tensor;
}

WEFT_INLINE void SafetensorsFile::read_header() {
  struct stat about{};
  if (::fstat(file_, &about) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(about.st_mode)) refuse("is not a file");
  auto const file_bytes = static_cast<std::uint64_t>(about.st_size);
  std::uint64_t text_bytes = 0;
  if (file_bytes < sizeof text_bytes)
    refuse("has ", file_bytes,
           " bytes, and the length of a header alone has 8: it is cut short, or no safetensors file");
  read(&text_bytes, sizeof text_bytes, 0);
  if (text_bytes > max_header_bytes)
    refuse("announces a header of ", text_bytes, " bytes, and at most ", max_header_bytes,
           " are allowed: it is no safetensors file");
  if (text_bytes > file_bytes - sizeof text_bytes)
    refuse("announces a header of ", text_bytes, " bytes, but has ", file_bytes,
           " in all: it is cut short, or no safetensors file");
  std::string text(text_bytes, '\0');
  read(text.data(), text_bytes, sizeof text_bytes);
  data_begin_ = sizeof text_bytes + text_bytes;
  header_ = HeaderReader(path_, text).read();
  check_ranges(path_, header_, file_bytes - data_begin_);
}

WEFT_INLINE void SafetensorsFile::read(void* to, std::uint64_t size, std::uint64_t from) const {
  auto* out = static_cast<char*>(to);
  while (size > 0) {
    ssize_t const got = ::pread(file_, out, std::min(size, std::uint64_t{1} << 30), static_cast<off_t>(from));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(std::strerror(errno));
    if (got == 0) refuse("became shorter while it was read");
    out += got;
    from += static_cast<std::uint64_t>(got);
    size -= static_cast<std::uint64_t>(got);
  }
}

WEFT_INLINE NamedTensors load_safetensors(std::string const& path) {
  SafetensorsFile const file(path);
  NamedTensors tensors;
  tensors.reserve(file.entries().size());
  for (auto const& entry : file.entries()) tensors.emplace_back(entry.name, file.load(entry));
  return tensors;
}

}  // namespace weft::checkpoints
