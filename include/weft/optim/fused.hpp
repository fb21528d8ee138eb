// optim/fused.hpp -- one kernel call per parameter group.
// In: the parameters of a group that have a gradient, with their state. Out: lists of tensors that one fused kernel takes as they are.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <weft/core/error.hpp>

namespace weft::optim {

// [Note: fused kernels read memory] ATen's fused kernels on CPU walk all tensors of a parameter from their first element on
// and look at neither strides nor sizes, so everything is brought into the parameter's own layout first. Almost always it
// is there already; the check then costs a few flags.
inline bool same_layout(at::Tensor const& a, at::Tensor const& b) {
  if (a.scalar_type() != b.scalar_type()) return false;
  if (a.is_contiguous() && b.is_contiguous()) return true;
  return a.strides() == b.strides();
}

// The tensor itself, or a copy in the layout and dtype of like. See [Note: fused kernels read memory].
inline at::Tensor arranged_like(at::Tensor const& like, at::Tensor const& tensor, char const* what) {
  if (tensor.sizes() != like.sizes())
    fail<Error>("weft: optimizer step: a parameter of shape ", like.sizes(), " has a ", what, " of shape ", tensor.sizes(),
                ": the parameter was resized or replaced after setup");
  if (same_layout(like, tensor)) return tensor;
  at::Tensor copy = at::empty_like(like, like.options().requires_grad(false));
  copy.copy_(tensor);
  return copy;
}

// The tensors of one call: one device, one dtype, and (for Adam) one step count.
struct FusedCall {
  at::Device device;
  at::ScalarType dtype;
  std::int64_t steps;
  std::vector<at::Tensor> parameters{};
  std::vector<at::Tensor> gradients{};
  std::array<std::vector<at::Tensor>, 3> states{};
  std::vector<std::pair<at::Tensor, at::Tensor>> write_back{};  // parameters with gaps in memory, and the dense copies stepped for them

  // Adds parameter and gradient, and returns what states must be laid out like.
  at::Tensor const& add(at::Tensor const& parameter, at::Tensor const& gradient) {
    if (parameter.is_contiguous() || parameter.is_non_overlapping_and_dense()) {
      parameters.push_back(parameter);
    } else {
      parameters.push_back(parameter.contiguous());
      write_back.emplace_back(parameter, parameters.back());
    }
    gradients.push_back(arranged_like(parameters.back(), gradient, "gradient"));
    return parameters.back();
  }
  // Fused kernels do not tell autograd that parameters changed, and a backward through the old values would be silently wrong.
  void finish() const {
    for (auto const& [parameter, stepped] : write_back) parameter.copy_(stepped);
    for (at::Tensor const& parameter : parameters)
      if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
  }
};

// The calls of one group. A group of one dtype on one device, stepped together from the start, is one call.
class FusedCalls {
 public:
  explicit FusedCalls(std::size_t num_parameters) : num_parameters_(num_parameters) {}

  FusedCall& call_for(at::Tensor const& parameter, std::int64_t steps) {
    for (auto& call : calls_)
      if (call.steps == steps && call.dtype == parameter.scalar_type() && call.device == parameter.device()) return call;
    auto& call = calls_.emplace_back(FusedCall{parameter.device(), parameter.scalar_type(), steps});
    call.parameters.reserve(num_parameters_);
    call.gradients.reserve(num_parameters_);
    return call;
  }
  auto begin() { return calls_.begin(); }
  auto end() { return calls_.end(); }

 private:
  std::size_t num_parameters_;
  std::vector<FusedCall> calls_;
};

inline void refuse_sparse(at::Tensor const& gradient, char const* optimizer) {
  if (gradient.layout() != at::kStrided)
    fail<Error>("weft: ", optimizer, ": a gradient has layout ", gradient.layout(), ": build the embedding without sparse(true)");
}

}  // namespace weft::optim
