// model/engine.hpp -- what a mechanism does around one model.
// In: calls of setup, of the wrapped model, of guards and of optimizers. Out: gradients that mean what the strategy
// promises.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

namespace torch::optim {
class Optimizer;
}

namespace weft::inline v0::model {

struct ParameterRow;

/// What a walk over unsharded parameters is for.
enum class Visit {
  read_on_first,  // to be read by the rank that is the first along each axis; nothing comes to the others
  read,           // to be read on all ranks
  write,          // on all ranks, and what is written stays
};

/// What a backward pass does with gradients of its own.
enum class BackwardSync {
  reduce,      // averages them over ranks
  accumulate,  // adds them up on each rank, until a pass reduces the sum
  local,       // leaves each rank its own, for good
};

/// Made by a mechanism for each model that is set up; several of one model are stacked (model/engine_stack.hpp). The
/// defaults are those of a single process: nothing to do.
class Engine {
 public:
  virtual ~Engine() = default;

  /// Takes from a parameter that gets its memory in setup what this engine keeps of it, and returns what is left on
  /// this rank, for the engines inside. `values`: equal on all ranks; what the engines around have left of it. Local.
  virtual at::Tensor take(ParameterRow const& row, at::Tensor values) {
    static_cast<void>(row);
    return values;
  }

  /// Before and after the model's forward; outputs may be replaced by tensors with the same values.
  virtual void pre_forward() {}
  virtual void post_forward(std::vector<at::Tensor*> const& outputs) { static_cast<void>(outputs); }
  virtual void abandon_forward() noexcept {}  // forward threw

  /// An exception left Fabric::backward: gradients that were there before, and parameters, are shown again. Local:
  /// other ranks may be gone.
  virtual void abandon_backward() noexcept {}

  /// What backward passes do from here on. Returns what was set before.
  virtual BackwardSync set_backward_sync(BackwardSync sync) { return sync; }

  /// Whether calling one of the model's units past the wrapped model would go unnoticed by the engine.
  virtual bool guards_units() const { return false; }

  /// Around each step of an optimizer of the model's parameters, if it asks to hear of them when the optimizer is set
  /// up. `before_step` comes after gradients are what the loss says they are, and not if the step is skipped.
  virtual bool hears_steps() const { return false; }
  virtual void before_step(torch::optim::Optimizer& optimizer) { static_cast<void>(optimizer); }
  virtual void after_step(torch::optim::Optimizer& optimizer) { static_cast<void>(optimizer); }

  /// Makes all parameters unsharded, on all ranks together, until reshard_all(); with keep_changes, what was written
  /// stays.
  virtual void unshard_all() {}
  virtual void reshard_all(bool keep_changes) { static_cast<void>(keep_changes); }

  /// Shows rows of the parameter table unsharded to `visit`, as few at a time as travel together: each row once, on
  /// whichever ranks `what` names. Collective, with one list on all ranks.
  using Rows = std::vector<std::size_t>;
  virtual void visit_unsharded(Rows const& rows, Visit what, c10::function_ref<void(Rows const&)> visit) {
    static_cast<void>(what);
    visit(rows);
  }

  /// Shows each parameter in its unsharded shape but without memory, to code that decides by shape; and back. Local.
  virtual void show_shapes(bool unsharded) { static_cast<void>(unsharded); }

  /// Scales every buffer that holds a part of this parameter's gradient, where more may be held of it than its grad;
  /// false: it is no such parameter. Local.
  virtual bool scale_gradient(at::Tensor const& parameter, at::Tensor const& factor) {
    static_cast<void>(parameter), static_cast<void>(factor);
    return false;
  }

  /// Frees what the process groups of the job are needed for. Called by teardown, at most once.
  virtual void close() {}
};

}  // namespace weft::model
