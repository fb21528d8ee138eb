// estimates/widths.hpp -- bytes of an element, under a precision.
// In: a precision, and what a parameter is. Out: how wide it is where it is kept, computed with and reduced.
#pragma once

#include <cstddef>

#include <weft/estimates/model_shape.hpp>
#include <weft/strategy/precision.hpp>

namespace weft::inline v0::estimates {

/// Bytes of an element.
struct Widths {
  std::size_t kept = 4;
  std::size_t computed = 4;  // gathered, and as gradients arrive
  std::size_t reduced = 4;   // of gradients while they are added up over ranks
  bool casts = false;        // what computes is no part of what is kept
  bool apart = false;        // what is added up is not what is handed out
  bool operator==(Widths const&) const = default;
};

constexpr std::size_t bytes_of(Number number) { return number == Number::fp64 ? 8 : number == Number::fp32 ? 4 : 2; }

/// As [Note: layers that keep statistics] in precision/rules.hpp and [Note: what a precision casts] in shard/dtypes.hpp
/// have it, of a model whose numbers are element_bytes wide before setup.
constexpr Widths widths_of(std::size_t element_bytes, bool has_statistics, PrecisionConfig const& config) {
  bool const stays = has_statistics && config.stored != config.buffers;
  bool const converts = config.stored != Number::fp32 && !stays, casts = config.computed != config.stored;
  Widths bytes{.kept = converts ? bytes_of(config.stored) : element_bytes};
  bytes.casts = casts && !has_statistics && (converts || bytes.kept != bytes_of(config.computed));
  bytes.computed = bytes.casts ? bytes_of(config.computed) : bytes.kept;
  bool const is_told = casts || converts || bytes.kept == bytes_of(config.stored);
  bytes.reduced = is_told ? bytes_of(config.reduced) : bytes.kept;
  bytes.apart = converts ? config.reduced != config.stored : bytes.reduced != bytes.kept;
  return bytes;
}

constexpr std::size_t kept_bytes(UnitShape const& unit, std::size_t element_bytes, PrecisionConfig const& precision) {
  std::size_t bytes = 0;
  for (auto const& parameter : unit.parameters)
    bytes += static_cast<std::size_t>(parameter.numel) *
             widths_of(element_bytes, parameter.has_statistics, precision).kept;
  return bytes;
}

}  // namespace weft::estimates
