// data/windows.ipp -- definitions of data/windows.hpp.
#pragma once

#include <weft/data/windows.hpp>

#include <cmath>

#include <weft/core/build.hpp>
#include <weft/core/seeds.hpp>

namespace weft::inline v0::data::detail {

WEFT_INLINE std::size_t tokens_at_end(double fraction, std::size_t size, std::string const& name, char const* unit) {
  auto const at_end = static_cast<std::size_t>(std::llround(static_cast<double>(size) * fraction));
  if (!(fraction > 0 && fraction < 1) || at_end == 0 || at_end >= size)
    fail<ConfigurationError>("weft: text file ", name, ": ", size, " ", unit, " cannot be split with a fraction of ",
                             fraction, " at the end: both parts need ", unit);
  return at_end;
}

WEFT_INLINE double entropy_of(std::vector<std::size_t> const& counts) {
  double sum = 0, entropy = 0;
  for (std::size_t const count : counts) sum += static_cast<double>(count);
  for (std::size_t const count : counts)
    if (double const share = static_cast<double>(count) / sum; count != 0) entropy -= share * std::log(share);
  return entropy;
}

}  // namespace weft::data::detail

namespace weft::inline v0::data {

WEFT_INLINE std::uint64_t ScatteredOrder::round_trip(std::uint64_t index) const {
  std::uint64_t const mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = index >> half_bits_, right = index & mask;
  for (std::uint64_t round = 0; round < 4; ++round) {
    std::uint64_t const mixed = left ^ (core::mixed(right + seed_ + round * 0x9e3779b97f4a7c15u) & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

}  // namespace weft::data
