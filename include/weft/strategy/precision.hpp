// strategy/precision.hpp -- in which numbers a model is stored, computed and reduced.
// In: nothing. Out: the precision policies and the one value that tells them apart.
#pragma once

#include <weft/core/policy.hpp>

namespace weft {

enum class Number { fp64, fp32, bf16, fp16 };

struct PrecisionPlan {
  Number stored = Number::fp32;    // parameters, as the optimizer sees them
  Number computed = Number::fp32;  // inputs, and parameters as forward sees them
  Number reduced = Number::fp32;   // gradients while they are summed over ranks
  Number buffers = Number::fp32;
  Number output = Number::fp32;    // what the model returns
  bool autocast = false;           // each operation picks its type; parameters keep theirs
  bool loss_scaling = false;
  bool operator==(PrecisionPlan const&) const = default;
};

struct Fp32 {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Fp32";
  static constexpr PrecisionPlan plan{};
};
struct Fp64 {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Fp64";
  static constexpr PrecisionPlan plan{.stored = Number::fp64,
                                      .computed = Number::fp64,
                                      .reduced = Number::fp64,
                                      .buffers = Number::fp64,
                                      .output = Number::fp32};
};
struct Bf16 {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Bf16";
  static constexpr PrecisionPlan plan{
      .stored = Number::bf16, .computed = Number::bf16, .buffers = Number::bf16, .output = Number::fp32};
};
struct Fp16 {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Fp16";
  static constexpr PrecisionPlan plan{
      .stored = Number::fp16, .computed = Number::fp16, .buffers = Number::fp16, .output = Number::fp32};
};
struct Bf16Mixed {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Bf16Mixed";
  static constexpr PrecisionPlan plan{.computed = Number::bf16, .autocast = true};
};
struct Fp16Mixed {
  using category = weft::category::precision;
  static constexpr std::string_view name = "Fp16Mixed";
  static constexpr PrecisionPlan plan{.computed = Number::fp16, .autocast = true, .loss_scaling = true};
};

// Parameters are kept in Fp32 and used in Param. Each argument is one of Fp64, Fp32, Bf16, Fp16.
template <class Param, class Reduce, class Buffer, class Output>
struct MixedPrecision {
  using category = weft::category::precision;
  static constexpr std::string_view name = "MixedPrecision";
  static constexpr PrecisionPlan plan{.computed = Param::plan.stored,
                                      .reduced = Reduce::plan.stored,
                                      .buffers = Buffer::plan.stored,
                                      .output = Output::plan.stored};
};

// A precision of one's own: category, name, plan; its mechanism is a Mechanism (strategy/mechanism.hpp).
template <class T>
concept Precision = is_of_v<T, category::precision> && requires {
  std::string_view{T::name};
  PrecisionPlan{T::plan};
};

}  // namespace weft
