// precision/rules.hpp -- what a precision does to a model.
// In: its config. Out: the dtype of each parameter and buffer, inputs and outputs converted, the scope in which forward
// runs.
//
// Mechanism<Mine>::Rules of one's own derives from Rules and overrides what a config cannot say:
//
//   template <>
//   struct weft::Mechanism<NormsInFp32> {
//     struct Rules : weft::precision::Rules {
//       using weft::precision::Rules::Rules;
//       at::ScalarType parameter_dtype(torch::nn::Module const& owner, std::string const& name, at::Tensor const&
//       parameter) const override {
//         return name.find("norm") != name.npos ? at::kFloat : weft::precision::Rules::parameter_dtype(owner, name,
//         parameter);
//       }
//     };
//   };
#pragma once

#include <concepts>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <weft/precision/autocast.hpp>
#include <weft/strategy/mechanism.hpp>
#include <weft/strategy/precision.hpp>

namespace weft::inline v0 {
namespace precision {

constexpr at::ScalarType dtype_of(Number number) {
  using enum Number;
  return number == fp64 ? at::kDouble : number == bf16 ? at::kBFloat16 : number == fp16 ? at::kHalf : at::kFloat;
}

/// [Note: layers that keep statistics] A running mean in eight bits of mantissa stops moving (known fault NUM-19), and
/// LibTorch's normalizations take statistics and parameters in one dtype, with inputs in that one or a lower one. So
/// where parameters compute in other numbers than they are kept in, such a layer does not: its statistics and
/// parameters stay as they are. Told by the name that LibTorch's batch and instance norms give their buffer.
/// tests/shard/precision.cpp
inline bool keeps_statistics(torch::nn::Module const& layer) {
  auto const buffers = layer.named_buffers(/*recurse=*/false);
  auto const* const mean = buffers.find("running_mean");
  return mean && mean->defined();
}

class Rules {
 public:
  explicit Rules(PrecisionConfig const& config) : config_(config) {}
  virtual ~Rules() = default;

  PrecisionConfig const& config() const { return config_; }

  /// What a parameter of floating point is kept in. `name` is its path; `owner` the module that registered it.
  virtual at::ScalarType parameter_dtype(torch::nn::Module const& owner, std::string const& name,
                                         at::Tensor const& parameter) const;
  virtual at::ScalarType buffer_dtype(torch::nn::Module const& owner, std::string const& name,
                                      at::Tensor const& buffer) const;

  /// A tensor of floating point that goes into the model, and one that comes out.
  virtual at::Tensor input(at::Tensor const& tensor) const {
    return config_.computed == Number::fp32 || (config_.autocast && !config_.autocast_inputs)
               ? tensor
               : tensor.to(dtype_of(config_.computed));
  }
  virtual at::Tensor output(at::Tensor const& tensor) const {
    return tensor.scalar_type() == dtype_of(config_.computed) ? tensor.to(dtype_of(config_.output)) : tensor;
  }

  /// Around forward, and what fabric.autocast() is.
  virtual Autocast scope(at::DeviceType device, bool enabled = true) const {
    if (!config_.autocast) return Autocast();
    return Autocast(device, dtype_of(config_.computed), enabled);
  }

 private:
  PrecisionConfig config_;
};

}  // namespace precision

/// Every precision is carried out by its config, unless its Mechanism says more.
template <class P>
  requires(is_of_v<P, category::precision>)
struct Mechanism<P> {
  using Rules = precision::Rules;
};

namespace precision {

/// Mechanism<P>::Rules, if it is one.
template <class P>
concept HasRules = requires { typename Mechanism<P>::Rules; } &&
                   std::derived_from<typename Mechanism<P>::Rules, Rules> &&
                   std::constructible_from<typename Mechanism<P>::Rules, PrecisionConfig const&>;

/// Those, or after the message that there are none, the config's, so that one mistake is one error.
template <class P>
struct RulesOf {
  using type = Rules;
};
template <HasRules P>
struct RulesOf<P> {
  using type = typename Mechanism<P>::Rules;
};
template <class P>
using rules_of_t = typename RulesOf<P>::type;

}  // namespace precision
}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/precision/rules.ipp>
#endif
