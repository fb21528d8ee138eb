// report/event_file.hpp -- TensorBoard's file format: records of length, checksum, Event message.
// In: steps, tags, values. Out: bytes. What is here of protobuf is its wire format, for the fields of event.proto and
// summary.proto that are written.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weft::inline v0::report {

/// CRC-32C (Castagnoli).
constexpr std::uint32_t crc32c(std::string_view bytes) {
  constexpr auto table = [] {
    std::array<std::uint32_t, 256> entries{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      entries[i] = i;
      for (int bit = 0; bit < 8; ++bit) entries[i] = entries[i] >> 1 ^ (entries[i] & 1 ? 0x82f63b78u : 0u);
    }
    return entries;
  }();
  std::uint32_t crc = 0xffffffffu;
  for (char const byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

template <std::unsigned_integral Number>
constexpr std::string little_endian(Number number) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof number; ++i) bytes += static_cast<char>(number >> 8 * i & 0xff);
  return bytes;
}

/// One record of a TFRecord file.
constexpr std::string tf_record(std::string_view data) {
  // A checksum that is stored beside the bytes that it covers is masked, says the format.
  auto const masked = [](std::string_view bytes) {
    auto const crc = crc32c(bytes);
    return little_endian((crc >> 15 | crc << 17) + 0xa282ead8u);
  };
  auto const length = little_endian(static_cast<std::uint64_t>(data.size()));
  return length + masked(length) + std::string(data) + masked(data);
}

/// A protobuf message, field by field. As in proto3, a number of 0 is left out unless it is one of a choice.
class Message {
 public:
  constexpr Message& integer(unsigned field, std::int64_t value) {
    if (value == 0) return *this;
    key(field, 0);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  constexpr Message& boolean(unsigned field, bool value) {
    key(field, 0);
    varint(value ? 1 : 0);
    return *this;
  }
  constexpr Message& real(unsigned field, double value) {
    key(field, 1);
    bytes_ += little_endian(std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  constexpr Message& real32(unsigned field, float value) {
    key(field, 5);
    bytes_ += little_endian(std::bit_cast<std::uint32_t>(value));
    return *this;
  }
  constexpr Message& text(unsigned field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  constexpr Message& message(unsigned field, Message const& value) { return text(field, value.bytes_); }

  constexpr std::string const& bytes() const { return bytes_; }

 private:
  constexpr void key(unsigned field, unsigned wire_type) { varint(field << 3 | wire_type); }
  constexpr void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7f) | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// Field numbers are those of tensorboard's protos, which the names repeat.
namespace event {

Message summary_metadata(std::string_view plugin_name, std::string_view content = {});

/// The first record of every file.
inline Message file_version(double wall_time) { return Message().real(1, wall_time).text(3, "brain.Event:2"); }
inline Message of_summary(double wall_time, std::int64_t step, Message const& summary) {
  return Message().real(1, wall_time).integer(2, step).message(5, summary);
}

/// Summary.value with simple_value; TensorBoard keeps scalars in fp32.
inline void add_scalar(Message& summary, std::string_view tag, double value) {
  summary.message(1, Message().text(1, tag).real32(2, static_cast<float>(value)));
}
/// Summary.value with a tensor of one string, for the plugin "text".
void add_text(Message& summary, std::string_view tag, std::string_view text);
/// Summary.value that says with which settings the run began, for the plugin "hparams": `settings` is a
/// SessionStartInfo.
void add_session_start(Message& summary, Message const& settings);

}  // namespace event
}  // namespace weft::report

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/report/event_file.ipp>
#endif
