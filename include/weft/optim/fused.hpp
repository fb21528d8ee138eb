// optim/fused.hpp -- one kernel call per parameter group.
// In: the parameters of a group that have a gradient, with their state. Out: lists of tensors that one fused kernel
// takes as they are, neighbors in memory joined.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <weft/core/error.hpp>
#include <weft/core/memory_tag.hpp>

namespace weft::inline v0::optim {

// [Note: fused kernels read memory] ATen's fused kernels on CPU walk all tensors of a parameter from their first
// element on and look at neither strides nor sizes, so everything is brought into the parameter's own layout first.
// Almost always it is there already; the check then costs a few flags.
inline bool same_layout(at::Tensor const& a, at::Tensor const& b) {
  if (a.scalar_type() != b.scalar_type()) return false;
  if (a.is_contiguous() && b.is_contiguous()) return true;
  return a.strides() == b.strides();
}

// The tensor itself, or a copy in the layout and dtype of like. See [Note: fused kernels read memory].
inline at::Tensor arranged_like(at::Tensor const& like, at::Tensor const& tensor, char const* what) {
  if (tensor.sizes() != like.sizes())
    fail<Error>("weft: optimizer step: a parameter of shape ", like.sizes(), " has a ", what, " of shape ",
                tensor.sizes(), ": the parameter was resized or replaced after setup");
  if (same_layout(like, tensor)) return tensor;
  at::Tensor copy = at::empty_like(like, like.options().requires_grad(false));
  copy.copy_(tensor);
  return copy;
}

// Whether b lies where a ends.
inline bool is_followed_by(at::Tensor const& a, at::Tensor const& b) {
  return a.is_contiguous() && b.is_contiguous() &&
         a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.storage_offset() + a.numel() == b.storage_offset();
}

// [Note: runs] A sharded unit keeps its parameters' parts one behind the other, and so its gradients. To the kernel a
// run of such neighbors is one tensor, if their states lie alike: states of a run are made in one piece. Who replaces a
// state (loading, for instance) only makes the run fall apart.
struct FusedLists {
  std::vector<at::Tensor> parameters{};
  std::vector<at::Tensor> gradients{};
  std::array<std::vector<at::Tensor>, 3> states{};
};

// The tensors of one call: one device, one dtype, and (for Adam) one step count.
struct FusedCall : FusedLists {
  at::Device device;
  at::ScalarType dtype;
  std::int64_t steps;
  std::array<std::vector<at::Tensor*>, 3> slots{};  // where the optimizer keeps the states
  std::vector<at::Tensor> stepped{};  // all that were added; of those, empty ones have states and nothing to step
  std::vector<std::pair<at::Tensor, at::Tensor>>
      write_back{};  // parameters with gaps in memory, and the dense copies stepped for them

  FusedCall(at::Device on, at::ScalarType of, std::int64_t after) : device(on), dtype(of), steps(after) {}

  void add(at::Tensor const& parameter, at::Tensor const& gradient) {
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
  // The k-th state of the parameter added last: filled in by prepare(), zero if there is none.
  void add_state(std::size_t k, at::Tensor& state) {
    if (stepped.back().numel() > 0)
      slots[k].push_back(&state);
    else if (!state.defined())
      state = at::zeros_like(stepped.back(), stepped.back().options().requires_grad(false));
  }

  // What the kernel gets, which may be nothing. See [Note: runs].
  FusedLists prepare(std::array<char const*, 3> const& names) {
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
    return joined;
  }
  // Fused kernels do not tell autograd that parameters changed, and a backward through the old values would be silently
  // wrong.
  void finish() const {
    for (auto const& [parameter, stepped] : write_back) parameter.copy_(stepped);
    for (at::Tensor const& parameter : stepped)
      if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
  }

 private:
  // The k-th states of a run, made where there are none. Returns whether they lie one behind the other, too.
  bool ready(std::size_t k, std::size_t first, std::size_t last, char const* what) {
    core::Tagged const tag(core::MemoryTag::optimizer);
    auto const options = parameters[first].options().requires_grad(false);
    bool is_new = last - first > 1;
    for (std::size_t i = first; i < last; ++i) is_new = is_new && !slots[k][i]->defined();
    if (is_new) {
      auto const begin = parameters[first].storage_offset();
      auto const all = at::zeros({parameters[last - 1].storage_offset() + parameters[last - 1].numel() - begin},
                                 options);
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
};

// The calls of one group. A group of one dtype on one device, stepped together from the start, is one call.
class FusedCalls {
 public:
  explicit FusedCalls(std::size_t num_parameters) : num_parameters_(num_parameters) {}

  FusedCall& call_for(at::Tensor const& parameter, std::int64_t steps) {
    for (auto& call : calls_)
      if (call.steps == steps && call.dtype == parameter.scalar_type() && call.device == parameter.device())
        return call;
    auto& call = calls_.emplace_back(parameter.device(), parameter.scalar_type(), steps);
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
    fail<Error>("weft: ", optimizer, ": a gradient has layout ", gradient.layout(),
                ": build the embedding without sparse(true)");
}

}  // namespace weft::optim
