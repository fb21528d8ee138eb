// model/parameter_table.ipp -- definitions of model/parameter_table.hpp.
#pragma once

#include <weft/model/parameter_table.hpp>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/unit/walk.hpp>

namespace weft::inline v0::model {

WEFT_INLINE std::vector<std::string> divided_over(ParameterRow const& row) {
  std::vector<std::string> axes;
  for (auto const& [axis, placement] : row.placements)
    if (!std::holds_alternative<Replicate>(placement)) axes.push_back(axis);
  return axes;
}

WEFT_INLINE std::vector<int64_t> strides_without_gaps(at::Tensor const& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  std::vector<int64_t> strides(static_cast<std::size_t>(tensor.dim()), 1);
  for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * tensor.size(static_cast<int64_t>(d));
  return strides;
}

WEFT_INLINE at::Tensor elements_of(at::Tensor const& tensor) {
  auto const dense =
      tensor.is_non_overlapping_and_dense()
          ? tensor
          : at::empty_strided(tensor.sizes(), strides_without_gaps(tensor), tensor.options()).copy_(tensor);
  return dense.as_strided({dense.numel()}, {1});
}

WEFT_INLINE std::string ParameterTable::unknown_in(torch::nn::Module const& root) const {
  for (auto const& parameter : root.named_parameters())
    if (parameter.value().defined() && !index_of(parameter.value())) return parameter.key();
  return "";
}

WEFT_INLINE std::string ParameterTable::describe(ParameterRow const& row) {
  std::string text = row.name + " [";
  for (std::size_t d = 0; d < row.global_shape.size(); ++d)
    text += (d == 0 ? "" : ", ") + std::to_string(row.global_shape[d]);
  text += "] ";
  // The order of memory, where it isn't the usual one: parts of a flat range would be other elements. Sizes of 1 have
  // no say.
  int64_t usual = 1;
  bool is_usual = true;
  for (std::size_t d = row.global_shape.size(); d-- > 0; usual *= row.global_shape[d])
    is_usual = is_usual && (row.global_shape[d] == 1 || row.global_strides[d] == usual);
  if (!is_usual && row.global_numel() > 0) {
    text += "strides [";
    for (std::size_t d = 0; d < row.global_strides.size(); ++d)
      text += (d == 0 ? "" : ", ") + std::to_string(row.global_shape[d] == 1 ? 1 : row.global_strides[d]);
    text += "] ";
  }
  text += c10::toString(row.dtype);
  text += row.trainable ? "" : " frozen";
  for (auto const& alias : row.aliases) text += " = " + alias;
  return text;
}

WEFT_INLINE void ParameterTable::refuse_incomplete_gradients(int global_rank) const {
  if (!has_notes_) return;
  for (auto const& row : rows_)
    if (gradient_state(row) == GradientState::incomplete)
      fail<Error>("weft: rank ", global_rank, ": backward: an exception left an earlier pass before the gradient of ",
                  row.name, " was complete, and this one would be added to it: call zero_grad() first");
}

WEFT_INLINE void ParameterTable::collect(torch::nn::Module& module, std::string const& path, std::string owner) {
  if (dynamic_cast<unit::UnitBase*>(&module)) owner = path;
  for (auto const& parameter : module.named_parameters(/*recurse=*/false))
    add(unit::join_path(path, parameter.key()), parameter.value(), owner);
  for (auto const& child : module.named_children())
    if (child.value()) collect(*child.value(), unit::join_path(path, child.key()), owner);
}

WEFT_INLINE void ParameterTable::add(std::string name, at::Tensor const& tensor, std::string const& owner) {
  if (!tensor.defined()) return;
  auto const [known, is_new] = by_identity_.emplace(tensor.unsafeGetTensorImpl(), rows_.size());
  if (!by_name_.emplace(name, known->second).second)
    fail<ConfigurationError>("weft: two parameters have the name ", name, ": rename one of them");
  if (!is_new) {
    rows_[known->second].aliases.push_back(std::move(name));
    return;
  }
  rows_.push_back(ParameterRow{.name = std::move(name),
                               .aliases = {},
                               .owner = owner,
                               .tensor = tensor,
                               .global_shape = tensor.sizes().vec(),
                               .global_strides = strides_without_gaps(tensor),
                               .dtype = tensor.scalar_type(),
                               .trainable = tensor.requires_grad(),
                               .local_shape = tensor.sizes().vec(),
                               .local_strides = strides_without_gaps(tensor)});
}

}  // namespace weft::model
