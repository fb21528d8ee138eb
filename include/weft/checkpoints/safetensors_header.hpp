// checkpoints/safetensors_header.hpp -- what a safetensors file says about itself.
// In: the JSON text before the data. Out: names, dtypes, shapes and byte ranges that were checked against each other;
// and back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/core/error.hpp>

namespace weft::inline v0::checkpoints {

// The format's dtypes that torch has, in the order in which its own writer lays tensors out backwards.
struct SafetensorsDtype {
  std::string_view name;
  std::size_t item_bytes;
};
inline constexpr std::array safetensors_dtypes{
    SafetensorsDtype{"BOOL", 1},    SafetensorsDtype{"U8", 1},      SafetensorsDtype{"I8", 1},
    SafetensorsDtype{"F8_E5M2", 1}, SafetensorsDtype{"F8_E4M3", 1}, SafetensorsDtype{"I16", 2},
    SafetensorsDtype{"U16", 2},     SafetensorsDtype{"F16", 2},     SafetensorsDtype{"BF16", 2},
    SafetensorsDtype{"I32", 4},     SafetensorsDtype{"U32", 4},     SafetensorsDtype{"F32", 4},
    SafetensorsDtype{"C64", 8},     SafetensorsDtype{"F64", 8},     SafetensorsDtype{"I64", 8},
    SafetensorsDtype{"U64", 8},
};
// Its place in that list, or the list's length.
constexpr std::size_t dtype_rank(std::string_view name) {
  std::size_t rank = 0;
  while (rank < safetensors_dtypes.size() && safetensors_dtypes[rank].name != name) ++rank;
  return rank;
}

inline constexpr std::uint64_t max_header_bytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // from the first byte of data
  std::uint64_t end = 0;
  bool operator==(SafetensorsEntry const&) const = default;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // as the header names them
  std::map<std::string, std::string> metadata;
};

// Reads the little JSON that a header is made of: objects, strings, whole numbers. Anything else is refused with the
// place.
class HeaderReader {
 public:
  HeaderReader(std::string_view path, std::string_view text) : path_(path), text_(text) {}

  SafetensorsHeader read();

 private:
  SafetensorsEntry entry(std::string name);

  template <class Member>
  void object(Member member) {
    expect('{');
    if (next_is('}')) return;
    do {
      space();
      std::string key = string();
      expect(':');
      space();
      member(std::move(key));
    } while (next_is(','));
    expect('}');
  }
  std::vector<std::uint64_t> numbers();
  std::uint64_t number();
  std::string string();
  void escape(std::string& value);
  std::uint32_t four_digits();

  void space();
  bool next_is(char c) {
    space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!next_is(c)) refuse("lacks a ", c);
  }
  template <class... Parts>
  [[noreturn]] void refuse(Parts const&... parts) const {
    fail<CheckpointError>("weft: ", path_, " is no safetensors file: its header ", parts..., " (byte ", at_,
                          " of the JSON)");
  }

  std::string_view path_;
  std::string_view text_;
  std::size_t at_ = 0;
};

// Every dtype known, every range as long as its shape says, all ranges together tiling the data without a gap.
void check_ranges(std::string_view path, SafetensorsHeader const& header, std::uint64_t data_bytes);

void put_json_string(std::string& out, std::string_view value);

// The header's text, padded so that data begin at a multiple of 8: byte for byte what the reference writer makes.
std::string header_text(SafetensorsHeader const& header);

}  // namespace weft::checkpoints

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/checkpoints/safetensors_header.ipp>
#endif
