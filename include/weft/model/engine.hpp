// model/engine.hpp -- what a strategy does around one model.
// In: calls of the wrapped model and of the backward guard. Out: gradients that mean what the strategy promises.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::inline v0::comm {
class Communicator;
}

namespace weft::inline v0::model {

/// One per set-up model, made by the strategy's mechanism. The defaults are those of a single process: nothing to do.
class Engine {
 public:
  virtual ~Engine() = default;

  /// Before and after the model's forward; outputs may be replaced by tensors with the same values.
  virtual void pre_forward() {}
  virtual void post_forward(std::vector<at::Tensor*> const& outputs) { static_cast<void>(outputs); }
  virtual void abandon_forward() noexcept {}  // forward threw

  /// An exception left Fabric::backward: gradients that were there before, and parameters, are shown again. Local:
  /// other ranks may be gone.
  virtual void abandon_backward() noexcept {}

  /// Whether a backward pass reduces gradients over ranks. Returns what was set before.
  virtual bool set_backward_sync(bool on) { return on; }

  /// Whether calling one of the model's units past the wrapped model would go unnoticed by the engine.
  virtual bool guards_units() const { return false; }

  /// Makes all parameters whole, on all ranks together, until reshard_all(); with keep_changes, what was written stays.
  virtual void unshard_all() {}
  virtual void reshard_all(bool keep_changes) { static_cast<void>(keep_changes); }

  /// Shows each parameter in its whole shape but without memory, to code that decides by shape; and back. Local.
  virtual void show_shapes(bool whole) { static_cast<void>(whole); }

  /// Multiplies all that there is of a parameter's gradient, where more may be held of it than its grad; false: it is
  /// no such parameter. Local.
  virtual bool scale_gradient(at::Tensor const& parameter, at::Tensor const& factor) {
    static_cast<void>(parameter), static_cast<void>(factor);
    return false;
  }

  /// The ranks of a mesh axis that a row of the parameter table names; null: an axis of one.
  virtual comm::Communicator* ranks_along(std::string const& axis) {
    static_cast<void>(axis);
    return nullptr;
  }

  /// Frees what the process groups of the job are needed for. Called by teardown, at most once.
  virtual void close() {}
};

}  // namespace weft::model
