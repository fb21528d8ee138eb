// checkpoints/safetensors_header.ipp -- definitions of checkpoints/safetensors_header.hpp.
#pragma once

#include <weft/checkpoints/safetensors_header.hpp>

#include <algorithm>
#include <unordered_set>

#include <weft/core/build.hpp>

namespace weft::inline v0::checkpoints {

WEFT_INLINE SafetensorsHeader HeaderReader::read() {
  SafetensorsHeader header;
  if (text_.empty() || text_.front() != '{') refuse("does not begin with {");
  std::unordered_set<std::string> seen;
  object([&](std::string name) {
    if (!seen.insert(name).second) refuse("names ", name, " twice");
    if (name == "__metadata__")
      object([&](std::string key) {
        std::string value = string();
        if (!header.metadata.emplace(key, std::move(value)).second) refuse("names ", key, " twice in __metadata__");
      });
    else
      header.entries.push_back(entry(std::move(name)));
  });
  space();
  if (at_ != text_.size()) refuse("goes on after the closing }");
  return header;
}

WEFT_INLINE SafetensorsEntry HeaderReader::entry(std::string name) {
  SafetensorsEntry entry{.name = std::move(name), .dtype = {}, .shape = {}};
  std::vector<std::uint64_t> offsets;
  std::unordered_set<std::string> seen;
  object([&](std::string key) {
    if (!seen.insert(key).second) refuse("gives ", key, " twice for tensor ", entry.name);
    if (key == "dtype") {
      entry.dtype = string();
    } else if (key == "shape") {
      for (std::uint64_t const size : numbers()) {
        if (size > static_cast<std::uint64_t>(INT64_MAX)) refuse("gives tensor ", entry.name, " a dim of ", size);
        entry.shape.push_back(static_cast<std::int64_t>(size));
      }
    } else if (key == "data_offsets") {
      offsets = numbers();
    } else {
      refuse("gives tensor ", entry.name, " an unknown word ", key);
    }
  });
  for (char const* key : {"dtype", "shape", "data_offsets"})
    if (!seen.contains(key)) refuse("gives tensor ", entry.name, " no ", key);
  if (offsets.size() != 2) refuse("gives tensor ", entry.name, " ", offsets.size(), " data_offsets, not 2");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  return entry;
}

WEFT_INLINE std::vector<std::uint64_t> HeaderReader::numbers() {
  std::vector<std::uint64_t> all;
  expect('[');
  if (next_is(']')) return all;
  do {
    space();
    all.push_back(number());
  } while (next_is(','));
  expect(']');
  return all;
}

WEFT_INLINE std::uint64_t HeaderReader::number() {
  std::size_t const start = at_;
  std::uint64_t value = 0;
  while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
    auto const digit = static_cast<std::uint64_t>(text_[at_++] - '0');
    if (value > (UINT64_MAX - digit) / 10) refuse("has a number beyond 64 bits");
    value = value * 10 + digit;
  }
  if (at_ == start) refuse("has something else where a whole number of at least 0 belongs");
  if (text_[start] == '0' && at_ > start + 1) refuse("has a number with a leading 0");
  return value;
}

WEFT_INLINE std::string HeaderReader::string() {
  std::string value;
  expect('"');
  while (true) {
    if (at_ >= text_.size()) refuse("ends within a string");
    char const c = text_[at_++];
    if (c == '"') return value;
    if (static_cast<unsigned char>(c) < 0x20) refuse("has a control character within a string");
    if (c == '\\')
      escape(value);
    else
      value += c;
  }
}

WEFT_INLINE void HeaderReader::escape(std::string& value) {
  if (at_ >= text_.size()) refuse("ends within a string");
  static constexpr std::string_view letters = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
  char const c = text_[at_++];
  if (std::size_t const i = letters.find(c); i != std::string_view::npos) {
    value += meanings[i];
    return;
  }
  if (c != 'u') refuse("has an unknown escape in a string");
  std::uint32_t code = four_digits();
  if (code >= 0xdc00 && code < 0xe000) refuse("has half a character in a string");
  if (code >= 0xd800 && code < 0xdc00) {
    if (text_.substr(at_, 2) != "\\u") refuse("has half a character in a string");
    at_ += 2;
    std::uint32_t const low = four_digits();
    if (low < 0xdc00 || low >= 0xe000) refuse("has half a character in a string");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  auto put = [&value](std::uint32_t byte) { value += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6), put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18), put(0x80 | (code >> 12 & 0x3f)), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
  }
}

WEFT_INLINE std::uint32_t HeaderReader::four_digits() {
  std::uint32_t code = 0;
  for (int i = 0; i < 4; ++i) {
    static constexpr std::string_view digits = "0123456789abcdef0123456789ABCDEF";
    std::size_t const digit = at_ < text_.size() ? digits.find(text_[at_++]) : std::string_view::npos;
    if (digit == std::string_view::npos) refuse("has a broken \\u in a string");
    code = code << 4 | static_cast<std::uint32_t>(digit % 16);
  }
  return code;
}

WEFT_INLINE void HeaderReader::space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
    ++at_;
}

WEFT_INLINE void check_ranges(std::string_view path, SafetensorsHeader const& header, std::uint64_t data_bytes) {
  std::vector<SafetensorsEntry const*> in_order;
  for (auto const& entry : header.entries) {
    auto refuse = [&](auto const&... parts) {
      fail<CheckpointError>("weft: ", path, ": tensor ", entry.name, ": ", parts...);
    };
    std::size_t const rank = dtype_rank(entry.dtype);
    if (rank == safetensors_dtypes.size()) refuse("unknown dtype ", entry.dtype);
    if (entry.begin > entry.end || entry.end > data_bytes)
      refuse("data_offsets [", entry.begin, ", ", entry.end, "] do not lie within the ", data_bytes, " bytes of data");
    std::uint64_t bytes = safetensors_dtypes[rank].item_bytes;
    bool const empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
    for (std::int64_t const size : entry.shape)
      if (!empty && __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes))
        refuse("its shape has more elements than can be counted");
    if (empty) bytes = 0;
    if (bytes != entry.end - entry.begin)
      refuse("shape and dtype ", entry.dtype, " make ", bytes, " bytes, data_offsets ", entry.end - entry.begin);
    in_order.push_back(&entry);
  }
  std::sort(in_order.begin(), in_order.end(),
            [](auto* a, auto* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
  std::uint64_t reached = 0;
  for (auto const* entry : in_order) {
    if (entry->begin != reached)
      fail<CheckpointError>("weft: ", path, ": tensor ", entry->name, " begins at byte ", entry->begin,
                            " of the data, but the one before ends at ", reached,
                            entry->begin < reached ? ": they overlap" : ": there is a gap");
    reached = entry->end;
  }
  if (reached != data_bytes)
    fail<CheckpointError>("weft: ", path, ": ", data_bytes - reached, " bytes at the end belong to no tensor");
}

WEFT_INLINE void put_json_string(std::string& out, std::string_view value) {
  static constexpr std::string_view digits = "0123456789abcdef", letters = "\"\\\b\f\n\r\t", escapes = "\"\\bfnrt";
  out += '"';
  for (char const c : value) {
    auto const byte = static_cast<unsigned char>(c);
    if (std::size_t const i = letters.find(c); i != std::string_view::npos)
      (out += '\\') += escapes[i];
    else if (byte < 0x20)
      ((out += "\\u00") += digits[byte >> 4]) += digits[byte & 15];
    else
      out += c;
  }
  out += '"';
}

WEFT_INLINE std::string header_text(SafetensorsHeader const& header) {
  std::string text = "{";
  auto key = [&text](std::string_view name) {
    if (text.back() != '{') text += ',';
    put_json_string(text, name);
    text += ':';
  };
  auto list = [&text](auto const& numbers) {
    text += '[';
    for (auto const number : numbers) {
      if (text.back() != '[') text += ',';
      text += std::to_string(number);
    }
    text += ']';
  };
  if (!header.metadata.empty()) {
    key("__metadata__");
    text += '{';
    for (auto const& [name, value] : header.metadata) {
      key(name);
      put_json_string(text, value);
    }
    text += '}';
  }
  for (auto const& entry : header.entries) {
    key(entry.name);
    text += "{\"dtype\":";
    put_json_string(text, entry.dtype);
    text += ",\"shape\":";
    list(entry.shape);
    text += ",\"data_offsets\":";
    list(std::array{entry.begin, entry.end});
    text += '}';
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace weft::checkpoints
