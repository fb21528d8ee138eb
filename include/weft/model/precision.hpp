// model/precision.hpp -- a model in the numbers of its precision.
// In: a module, calls and optimizers, with a precision's rules. Out: parameters and buffers converted, inputs and
// outputs on their way, gradients unscaled.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <weft/core/error.hpp>
#include <weft/core/visit.hpp>
#include <weft/model/engine.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/optim/optimizer.hpp>
#include <weft/precision/autocast.hpp>
#include <weft/precision/loss_scaler.hpp>
#include <weft/precision/rules.hpp>
#include <weft/unit/backward_hook.hpp>

namespace weft::inline v0 {

namespace comm {
struct Session;
}

/// An argument of a model whose tensors keep their dtype: model(x, weft::as_is(target)).
template <class T>
struct AsIs {
  T value;
};
template <class T>
AsIs<T> as_is(T value) {
  return {std::move(value)};
}

namespace model {

/// Parameters and buffers that are to be kept in another dtype than they have, by identity.
using Conversions = std::unordered_map<at::TensorImpl*, std::pair<at::Tensor, at::ScalarType>>;

void collect_conversions(torch::nn::Module const& module, std::string const& path, precision::Rules const& rules,
                         Conversions& all);

/// The tensor stays the one that modules and optimizers know.
void convert(at::Tensor const& tensor, at::ScalarType dtype);

/// Tied parameters stay tied. What has no memory yet gets it here, one after another; with `leaves_deferred` it stays
/// as it is, and is returned: the strategy gives it memory, and its dtype.
Conversions convert(torch::nn::Module& module, precision::Rules const& rules, bool leaves_deferred);

template <class T>
inline constexpr bool is_as_is_v = false;
template <class T>
inline constexpr bool is_as_is_v<AsIs<T>> = true;

/// Whether tensors in it are converted: in a copy, so what others share, and what cannot be copied, goes in as it is.
template <class A>
constexpr bool converts_argument() {
  using T = std::remove_cvref_t<A>;
  if constexpr (core::Leafless<T> || core::is_shared_ptr_v<T> || !is_visitable_v<at::Tensor, T>)
    return false;
  else
    return std::is_constructible_v<T, A>;
}

/// What forward gets for an argument.
template <class A>
decltype(auto) plain(A&& argument) {
  if constexpr (is_as_is_v<std::remove_cvref_t<A>>)
    return (std::forward<A>(argument).value);
  else
    return std::forward<A>(argument);
}
template <class A>
using PlainType = decltype(plain(std::declval<A>()));

/// Calls with each argument in the numbers that the model computes in. Returns a value: a reference may be to a
/// converted argument, which goes here.
template <class Call, class... Arguments>
auto call_converted(precision::Rules const& rules, Call const& call, Arguments&&... arguments) {
  auto const in_place = [&](auto value) {
    for_each_leaf<at::Tensor>(value, [&](at::Tensor& tensor) {
      if (tensor.defined() && tensor.is_floating_point()) tensor = rules.input(tensor);
    });
    return value;
  };
  auto const convert = [&]<class A>(std::type_identity<A>, auto&& argument) -> decltype(auto) {
    if constexpr (converts_argument<A>())
      return in_place(std::remove_cvref_t<A>(std::forward<A>(argument)));
    else
      return plain(std::forward<A>(argument));
  };
  static_cast<void>(in_place);
  std::tuple<decltype(convert(std::type_identity<Arguments>(), std::declval<Arguments>()))...> converted{
      convert(std::type_identity<Arguments>(), std::forward<Arguments>(arguments))...};
  return std::apply(
      [&](auto&... argument) -> decltype(auto) { return call(static_cast<PlainType<Arguments>>(argument)...); },
      converted);
}

/// A loss goes backward by Fabric::backward, or its gradients have no scale and are divided by it all the same.
struct ScaledBackward final : unit::BackwardHook {
  explicit ScaledBackward(std::shared_ptr<precision::LossScaler> it) : scaler(std::move(it)) {}
  void pre_backward() override {
    if (!scaler->is_in_backward())
      fail<Error>(
          "weft: loss.backward(): this Fabric's precision scales losses: call fabric.backward(loss), so that its "
          "gradients have the scale that the step takes away");
  }
  std::shared_ptr<precision::LossScaler> scaler;
};

/// What a precision has to do with the steps of one optimizer.
class PrecisionStep final : public optim::StepRule {
 public:
  explicit PrecisionStep(std::shared_ptr<precision::LossScaler::Gradients> gradients)
      : gradients_(std::move(gradients)) {}
  bool unscale() override { return !gradients_ || gradients_->unscale(); }
  bool begin_step(torch::optim::Optimizer&, bool has_closure) override {
    if (!gradients_) return true;
    if (has_closure)
      fail<ConfigurationError>(
          "weft: step(closure): this Fabric's precision scales losses, and a closure would run backward while the "
          "optimizer steps: call fabric.backward(loss), then step()");
    return gradients_->begin_step();
  }
  void end_step(torch::optim::Optimizer&) override { precision::forget_casts(); }  // see [Note: autocast's cache]
  void zeroed() override {
    if (gradients_) gradients_->forget();
  }

 private:
  std::shared_ptr<precision::LossScaler::Gradients> gradients_;  // null: nothing is scaled
};

/// Makes ranks that hold parts of the same parameters agree on what one of them met; see [Note: clipping in three
/// parts] for the axes.
precision::LossScaler::Agree agreement_over(std::shared_ptr<comm::Session> const& session, ParameterTable const& table,
                                            std::vector<at::Tensor> const& parameters);

/// Scales gradients by the engine that holds them. As above, the optimizer may outlive the models.
precision::LossScaler::Scale scale_by(std::vector<std::weak_ptr<Engine>> engines);

}  // namespace model
}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/model/precision.ipp>
#endif
