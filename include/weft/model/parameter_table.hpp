// model/parameter_table.hpp -- what the mechanisms share about parameters.
// In: a module. Out: one row per parameter: its names, its shape as a whole, and where it lies on each mesh axis.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include <weft/core/process_wide.hpp>
#include <weft/model/gradient_note.hpp>
#include <weft/plan/placement.hpp>
#include <weft/unit/hooks.hpp>

namespace weft::inline v0::model {

struct ParameterRow {
  std::string name;                  // the first it was registered under
  std::vector<std::string> aliases;  // further names of a tied parameter
  std::string owner;                 // path of the innermost unit around it; empty: the root
  at::Tensor tensor;                 // the parameter itself: what it holds may become a part of the whole
  std::vector<int64_t> global_shape;
  std::vector<int64_t>
      global_strides;  // the order of the whole's memory: channels-last and transposed parameters stay that
  at::ScalarType dtype;
  bool trainable;
  bool ignored = false;  // by a sharding that was told to: each rank has a whole one, and gradients stay its own
  std::vector<AxisPlacement> placements{};  // each mechanism writes its own axes, behind those around it
  // What the mechanisms that divide dims leave on this rank, and the order of its memory: a flat range is one of this.
  std::vector<int64_t> local_shape{};
  std::vector<int64_t> local_strides{};
  GradientNote gradient{};  // the table's, below

  int64_t global_numel() const { return c10::multiply_integers(global_shape); }
  int64_t local_numel() const { return c10::multiply_integers(local_shape); }
};

/// The axes that an element of the parameter lies on one rank of, or on some.
std::vector<std::string> divided_over(ParameterRow const& row);

// A tensor's own strides, or where its memory has gaps or overlaps, a row-major tensor's.
std::vector<int64_t> strides_without_gaps(at::Tensor const& tensor);

// Its elements in one dim, in the order of these strides; without a copy, where memory has no gaps.
at::Tensor elements_of(at::Tensor const& tensor);

/// Parameters that a model has cut: its module is of no use to another one, even when the model is gone. A part says
/// nothing of the whole, and as it has the whole's TensorImpl, nobody else can tell.
class ShardedParameters {
 public:
  static void add(at::Tensor const& parameter) {
    core::process_wide<Known>([&](Known& known) {
      known.insert_or_assign(parameter.unsafeGetTensorImpl(), Weak(parameter.getIntrusivePtr()));
    });
  }
  static bool contains(at::Tensor const& parameter) {
    return core::process_wide<Known>([&](Known& known) {
      auto const found = known.find(parameter.unsafeGetTensorImpl());
      return found != known.end() && !found->second.expired();
    });
  }
  /// Those of models that are gone. A weak reference keeps their addresses from being given away until then.
  static void forget_expired() {
    core::process_wide<Known>(
        [](Known& known) { std::erase_if(known, [](auto const& entry) { return entry.second.expired(); }); });
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct [[gnu::visibility("default")]] Known : std::unordered_map<c10::TensorImpl*, Weak> {};
};

class ParameterTable {
 public:
  // Each parameter once, in the order in which parameters() has them: a module's own first, then its children's, as
  // registered. Parameters that a module registered without a tensor (Linear without bias) have no row.
  static ParameterTable of(torch::nn::Module& root) {
    ParameterTable table;
    table.collect(root, "", "");
    return table;
  }

  std::vector<ParameterRow> const& rows() const { return rows_; }
  std::vector<ParameterRow>& rows() { return rows_; }
  std::size_t size() const { return rows_.size(); }

  // By any of its names; null if there is no such parameter.
  ParameterRow const* find(std::string_view name) const {
    auto const found = by_name_.find(std::string(name));
    return found == by_name_.end() ? nullptr : &rows_[found->second];
  }
  ParameterRow* find(std::string_view name) { return const_cast<ParameterRow*>(std::as_const(*this).find(name)); }

  // By identity of the TensorImpl, which a parameter keeps for life; its memory may move.
  std::optional<std::size_t> index_of(at::Tensor const& tensor) const {
    auto const found = by_identity_.find(tensor.unsafeGetTensorImpl());
    if (found == by_identity_.end()) return std::nullopt;
    return found->second;
  }

  // ---- what engines know about gradients ---------------------------------------------------------------------------

  void note_gradient(std::size_t row, GradientState state) {
    auto const& gradient = rows_[row].tensor.grad();
    if (!gradient.defined()) return;
    rows_[row].gradient = {state, gradient};
    has_notes_ = true;
  }
  void forget_gradient(std::size_t row) {
    if (has_notes_) rows_[row].gradient = {};
  }
  void forget_gradients() {
    if (std::exchange(has_notes_, false))
      for (auto& row : rows_) row.gradient = {};
  }
  GradientState gradient_state(ParameterRow const& row) const {
    return has_notes_ ? row.gradient.state_of(row.tensor.grad()) : GradientState::plain;
  }
  /// Refuses a backward pass that would be added to what an exception has left of an earlier one.
  void refuse_incomplete_gradients(int global_rank) const;
  bool has_notes() const { return has_notes_; }

  // The name of a parameter of `root` that is not in the table: registered since. Empty: there is none.
  std::string unknown_in(torch::nn::Module const& root) const;

  // Equal for equal models, whatever their values.
  std::string describe() const {
    std::string text;
    for (auto const& row : rows_) text += describe(row) + "\n";
    return text;
  }
  static std::string describe(ParameterRow const& row);

 private:
  void collect(torch::nn::Module& module, std::string const& path, std::string owner);

  void add(std::string name, at::Tensor const& tensor, std::string const& owner);

  std::vector<ParameterRow> rows_;
  std::unordered_map<at::TensorImpl*, std::size_t> by_identity_;  // rows_ keeps them alive
  std::unordered_map<std::string, std::size_t> by_name_;
  bool has_notes_ = false;  // some row may have one
};

}  // namespace weft::model

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/model/parameter_table.ipp>
#endif
