// optim/fused.hpp -- one kernel call per parameter group.
// In: the parameters of a group that have a gradient, with their state. Out: lists of tensors that one fused kernel
// takes as they are, neighbors in memory joined.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <weft/core/error.hpp>

namespace weft::inline v0::optim {

// [Note: fused kernels read memory] ATen's fused kernels on CPU walk all tensors of a parameter from their first
// element on and look at neither strides nor sizes, so everything is brought into the parameter's own layout first.
// Almost always it is there already; the check then costs a few flags.
bool same_layout(at::Tensor const& a, at::Tensor const& b);

// The tensor itself, or a copy in the layout and dtype of like. See [Note: fused kernels read memory].
at::Tensor arranged_like(at::Tensor const& like, at::Tensor const& tensor, char const* what);

// Whether b lies where a ends.
bool is_followed_by(at::Tensor const& a, at::Tensor const& b);

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

  void add(at::Tensor const& parameter, at::Tensor const& gradient);
  // The k-th state of the parameter added last: filled in by prepare(), zero if there is none.
  void add_state(std::size_t k, at::Tensor& state);

  // What the kernel gets, which may be nothing. See [Note: runs].
  FusedLists prepare(std::array<char const*, 3> const& names);
  // Fused kernels do not tell autograd that parameters changed, and a backward through the old values would be silently
  // wrong.
  void finish() const;

 private:
  // The k-th states of a run, made where there are none. Returns whether they lie one behind the other, too.
  bool ready(std::size_t k, std::size_t first, std::size_t last, char const* what);
};

// The calls of one group. A group of one dtype on one device, stepped together from the start, is one call.
class FusedCalls {
 public:
  explicit FusedCalls(std::size_t num_parameters) : num_parameters_(num_parameters) {}

  FusedCall& call_for(at::Tensor const& parameter, std::int64_t steps);
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

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/optim/fused.ipp>
#endif
