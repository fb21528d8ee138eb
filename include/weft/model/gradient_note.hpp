// model/gradient_note.hpp -- what a gradient is, beyond its values.
// In: an engine that knows, and a gradient. Out: whether it is still that gradient, and what a step makes of it.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace weft::inline v0::model {

enum class GradientState {
  plain,       // what the loss says, on all ranks: reduced, or there is none
  local_sum,   // this rank's sum of passes that no pass has reduced
  incomplete,  // an exception left a backward pass: what was added before is there without the rest, or is lost
};

/// Written beside a gradient. Whoever drops it, fills it with zeros or writes into it has taken it over: it is plain
/// again. The note keeps no memory of the gradient's.
class GradientNote {
 public:
  GradientNote() = default;
  GradientNote(GradientState state, at::Tensor const& gradient)
      : state_(state), gradient_(Weak(gradient.getIntrusivePtr())), version_(gradient._version()) {}

  GradientState state_of(at::Tensor const& gradient) const {
    bool const is_same = state_ != GradientState::plain && gradient.defined() &&
                         gradient_->_unsafe_get_target() == gradient.unsafeGetTensorImpl() &&
                         gradient._version() == version_;
    return is_same ? state_ : GradientState::plain;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  GradientState state_ = GradientState::plain;
  std::optional<Weak> gradient_{};  // keeps the address from being given away
  uint32_t version_ = 0;
};

}  // namespace weft::model
