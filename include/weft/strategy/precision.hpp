// strategy/precision.hpp -- in which numbers a model is stored, computed and reduced.
// In: nothing. Out: the precision policies and the one value that tells them apart.
#pragma once

#include <weft/plan/policy.hpp>

namespace weft::inline v0 {

enum class Number { fp64, fp32, bf16, fp16 };

// Gradients of fp16 vanish below 2^-24, so the loss is multiplied before backward, and the gradients divided before
// they are used. The scale grows while they stay finite, and backs off when they do not.
struct LossScaling {
  double initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int growth_interval = 2000;  // steps without an overflow
  bool operator==(LossScaling const&) const = default;
};

// fp32 is what LibTorch makes where nothing is said, so `stored`, `computed` and `buffers` of fp32 convert nothing: a
// module or an input in other numbers was meant to be.
struct PrecisionConfig {
  Number stored = Number::fp32;    // parameters, as the optimizer sees them
  Number computed = Number::fp32;  // inputs, and parameters as forward sees them
  Number reduced = Number::fp32;   // gradients while they are summed over ranks
  Number buffers = Number::fp32;
  Number output = Number::fp32;  // what was computed, as the model returns it
  bool autocast = false;         // each operation picks its type; parameters and inputs keep theirs
  bool autocast_inputs = false;  // but inputs are cast, as parameters are where they are gathered: FSDP sets it
  bool loss_scaling = false;
  LossScaling scaling{};
  bool operator==(PrecisionConfig const&) const = default;
};
using PrecisionPlan [[deprecated("weft: PrecisionPlan is PrecisionConfig now")]] = PrecisionConfig;

struct Fp32 {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Fp32";
  static constexpr PrecisionConfig config{};
};
struct Fp64 {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Fp64";
  static constexpr PrecisionConfig config{.stored = Number::fp64,
                                          .computed = Number::fp64,
                                          .reduced = Number::fp64,
                                          .buffers = Number::fp64,
                                          .output = Number::fp32};
};
// Buffers stay as they are: tables of frequencies and running statistics are of no use in 8 bits.
struct Bf16 {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Bf16";
  static constexpr PrecisionConfig config{.stored = Number::bf16, .computed = Number::bf16};
};
struct Fp16 {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Fp16";
  static constexpr PrecisionConfig config{.stored = Number::fp16, .computed = Number::fp16};
};
struct Bf16Mixed {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Bf16Mixed";
  static constexpr PrecisionConfig config{.computed = Number::bf16, .autocast = true};
};
struct Fp16Mixed {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Fp16Mixed";
  static constexpr PrecisionConfig config{.computed = Number::fp16, .autocast = true, .loss_scaling = true};
};

// Parameters are kept as they are, in Fp32 as LibTorch makes them, and used in Param, for a strategy that gathers them.
// Each argument is one of Fp64, Fp32, Bf16, Fp16.
template <class Param, class Reduce, class Buffer, class Output>
struct MixedPrecision {
  using category = weft::category::precision;
  static constexpr std::string_view name = "MixedPrecision";
  static constexpr PrecisionConfig config{.computed = Param::config.stored,
                                          .reduced = Reduce::config.stored,
                                          .buffers = Buffer::config.stored,
                                          .output = Output::config.stored};
};

// A precision of one's own: category, name, config. What a config cannot say is said by Mechanism<Mine>::Rules
// (precision/rules.hpp).
//
//   struct LowStatistics {
//     using category = weft::category::precision;
//     static constexpr std::string_view name = "LowStatistics";
//     static constexpr weft::PrecisionConfig config{.computed = weft::Number::bf16, .buffers = weft::Number::bf16,
//     .autocast = true};
//   };
template <class T>
concept Precision = is_of_v<T, category::precision> && requires {
  std::string_view{T::name};
  PrecisionConfig{T::config};
};

}  // namespace weft
