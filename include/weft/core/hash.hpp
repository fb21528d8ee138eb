// core/hash.hpp -- a number that stands for a text or a list of numbers, the same in every process.
// In: bytes and numbers, one after another. Out: 64 bits (FNV-1a).
#pragma once

#include <cstdint>
#include <string_view>

namespace weft::inline v0::core {

class Hash {
 public:
  constexpr void add(std::uint64_t value) { value_ = (value_ ^ value) * 1099511628211u; }
  constexpr void add(std::string_view text) {
    for (char const byte : text) add(std::uint64_t{static_cast<unsigned char>(byte)});
  }
  constexpr std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037u;
};

}  // namespace weft::core
