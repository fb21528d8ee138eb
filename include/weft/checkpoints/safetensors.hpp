// checkpoints/safetensors.hpp -- weights in the file format that everyone reads.
// In: named tensors. Out: one file, byte for byte as Python's safetensors writes it; and back, with every byte
// accounted for.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <weft/checkpoints/safetensors_header.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::checkpoints {

static_assert(std::endian::native == std::endian::little,
              "weft: safetensors files are little-endian, and so must be the machine");

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

inline constexpr std::array<std::pair<std::string_view, at::ScalarType>, safetensors_dtypes.size()>
    safetensors_scalar_types{{
        {"BOOL", at::kBool},
        {"U8", at::kByte},
        {"I8", at::kChar},
        {"F8_E5M2", at::kFloat8_e5m2},
        {"F8_E4M3", at::kFloat8_e4m3fn},
        {"I16", at::kShort},
        {"U16", at::kUInt16},
        {"F16", at::kHalf},
        {"BF16", at::kBFloat16},
        {"I32", at::kInt},
        {"U32", at::kUInt32},
        {"F32", at::kFloat},
        {"C64", at::kComplexFloat},
        {"F64", at::kDouble},
        {"I64", at::kLong},
        {"U64", at::kUInt64},
    }};

void save_safetensors(std::string const& path, NamedTensors const& tensors,
                      std::map<std::string, std::string> metadata = {{"format", "pt"}});

// An open safetensors file whose header has been checked.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::string path);
  SafetensorsFile(SafetensorsFile const&) = delete;
  SafetensorsFile& operator=(SafetensorsFile const&) = delete;
  ~SafetensorsFile() { ::close(file_); }

  std::vector<SafetensorsEntry> const& entries() const { return header_.entries; }
  std::map<std::string, std::string> const& metadata() const { return header_.metadata; }

  at::Tensor load(SafetensorsEntry const& entry) const;

 private:
  void read_header();
  void read(void* to, std::uint64_t size, std::uint64_t from) const;
  template <class... Parts>
  [[noreturn]] void refuse(Parts const&... parts) const {
    fail<CheckpointError>("weft: ", path_, ": ", parts...);
  }

  std::string path_;
  int file_ = -1;
  std::uint64_t data_begin_ = 0;
  SafetensorsHeader header_;
};

// All tensors, in the order the header names them.
NamedTensors load_safetensors(std::string const& path);

}  // namespace weft::checkpoints

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/checkpoints/safetensors.ipp>
#endif
