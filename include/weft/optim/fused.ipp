// optim/fused.ipp -- definitions of optim/fused.hpp.
#pragma once

#include <weft/optim/fused.hpp>

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <weft/core/build.hpp>
#include <weft/core/memory_tag.hpp>

namespace weft::inline v0::optim {

WEFT_INLINE bool same_layout(at::Tensor const& a, at::Tensor const& b) {
  if (a.scalar_type() != b.scalar_type()) return false;
  if (a.is_contiguous() && b.is_contiguous()) return true;
  return a.strides() == b.strides();
}

WEFT_INLINE at::Tensor arranged_like(at::Tensor const& like, at::Tensor const& tensor, char const* what) {
  if (tensor.sizes() != like.sizes())
    fail<Error>("weft: optimizer step: a parameter of shape ", like.sizes(), " has a ", what, " of shape ",
                tensor.sizes(), ": the parameter was resized or replaced after setup");
  if (same_layout(like, tensor)) return tensor;
  at::Tensor copy = at::empty_like(like, like.options().requires_grad(false));
  copy.copy_(tensor);
  return copy;
}

WEFT_INLINE bool is_followed_by(at::Tensor const& a, at::Tensor const& b) {
  return a.is_contiguous() && b.is_contiguous() &&
         a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.storage_offset() + a.numel() == b.storage_offset();
}

WEFT_INLINE void FusedCall::add(at::Tensor const& parameter, at::Tensor const& gradient) {
  stepped.push_back(parameter);
  if (parameter.numel() == 0) return;
  if (parameter.is_contiguous() || parameter.is_non_overlapping_and_dense()) {
    parameters.push_back(parameter);
  } else {
    parameters.push_back(parameter.contiguous());
    write_back.emplace_back(parameter, parameters.back());
  }
  gradients.push_back(arranged_like(parameters.back(), gradient, "gradient"));
}

WEFT_INLINE void FusedCall::add_state(std::size_t k, at::Tensor& state) {
  if (stepped.back().numel() > 0)
    slots[k].push_back(&state);
  else if (!state.defined())
    state = at::zeros_like(stepped.back(), stepped.back().options().requires_grad(false));
}

WEFT_INLINE FusedLists FusedCall::prepare(std::array<char const*, 3> const& names) {
  FusedLists joined;
  for (std::size_t first = 0, last = 0; first < parameters.size(); first = last) {
    auto const goes_on = [&] {
      return is_followed_by(parameters[last - 1], parameters[last]) &&
             is_followed_by(gradients[last - 1], gradients[last]);
    };
    for (last = first + 1; last < parameters.size() && goes_on();) ++last;
    bool lies_alike = true;
    for (std::size_t k = 0; k < slots.size(); ++k)
      if (!slots[k].empty()) lies_alike = ready(k, first, last, names[k]) && lies_alike;
    auto const add_to = [&](std::vector<at::Tensor>& list, std::vector<at::Tensor> const& from) {
      if (from.empty()) return;
      if (lies_alike && last - first > 1)
        list.push_back(at::as_strided(
            from[first], {from[last - 1].storage_offset() + from[last - 1].numel() - from[first].storage_offset()},
            {1}));
      else
        list.insert(list.end(), from.begin() + static_cast<std::ptrdiff_t>(first),
                    from.begin() + static_cast<std::ptrdiff_t>(last));
    };
    add_to(joined.parameters, parameters);
    add_to(joined.gradients, gradients);
    for (std::size_t k = 0; k < states.size(); ++k) add_to(joined.states[k], states[k]);
  }
  if (c10::isComplexType(dtype)) {  // kernels step real and imaginary parts, each as a number of its own
    auto const as_real = [](std::vector<at::Tensor>& list) {
      for (auto& tensor : list) tensor = at::view_as_real(tensor);
    };
    as_real(joined.parameters), as_real(joined.gradients);
    for (auto& list : joined.states) as_real(list);
  }
  return joined;
}

WEFT_INLINE void FusedCall::finish() const {
  for (auto const& [parameter, stepped] : write_back) parameter.copy_(stepped);
  for (at::Tensor const& parameter : stepped)
    if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
}

WEFT_INLINE bool FusedCall::ready(std::size_t k, std::size_t first, std::size_t last, char const* what) {
  core::Tagged const tag(core::MemoryTag::optimizer);
  auto const options = parameters[first].options().requires_grad(false);
  bool is_new = last - first > 1;
  for (std::size_t i = first; i < last; ++i) is_new = is_new && !slots[k][i]->defined();
  if (is_new) {
    auto const begin = parameters[first].storage_offset();
    auto const all = at::zeros({parameters[last - 1].storage_offset() + parameters[last - 1].numel() - begin}, options);
    for (std::size_t i = first; i < last; ++i)
      *slots[k][i] = at::as_strided(all, parameters[i].sizes(), parameters[i].strides(),
                                    parameters[i].storage_offset() - begin);
  }
  bool lies_alike = true;
  for (std::size_t i = first; i < last; ++i) {
    auto& state = *slots[k][i];
    state = state.defined() ? arranged_like(parameters[i], state, what) : at::zeros_like(parameters[i], options);
    lies_alike = lies_alike && (i == first || is_followed_by(states[k].back(), state));
    states[k].push_back(state);
  }
  return lies_alike;
}

WEFT_INLINE FusedCall& FusedCalls::call_for(at::Tensor const& parameter, std::int64_t steps) {
  for (auto& call : calls_)
    if (call.steps == steps && call.dtype == parameter.scalar_type() && call.device == parameter.device()) return call;
  auto& call = calls_.emplace_back(parameter.device(), parameter.scalar_type(), steps);
  call.parameters.reserve(num_parameters_);
  call.gradients.reserve(num_parameters_);
  return call;
}

}  // namespace weft::optim
