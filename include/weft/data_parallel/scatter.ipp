// data_parallel/scatter.ipp -- definitions of data_parallel/scatter.hpp.
#pragma once

#include <weft/data_parallel/scatter.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::data_parallel {

WEFT_INLINE Division division_of(std::vector<Cut> const& cuts, int num_devices) {
  Cut const* first = nullptr;
  for (auto const& cut : cuts) {
    if (!has_rows(*cut.tensor)) continue;
    if (!first) first = &cut;
    if (cut.tensor->size(0) != first->tensor->size(0))
      fail<ConfigurationError>("weft: DataParallel cuts tensors along dim 0, but argument ", first->argument, " has ",
                               first->tensor->size(0), " rows and argument ", cut.argument, " has ",
                               cut.tensor->size(0), "; write weft::whole(x) around what each device gets as it is");
  }
  return first ? division_of(first->tensor->size(0), num_devices) : Division();
}

WEFT_INLINE void Placed::operator()(at::Tensor& tensor) const {
  for (auto const& original : originals_)
    if (original.tensor == &tensor)
      refuse("a tensor behind a shared pointer, which is no copy when its pointer is copied");
  if (!tensor.defined()) return;
  if (part_ && part_->first.num_parts > 1 && has_rows(tensor))
    tensor = tensor.narrow(0, part_->first.begin(part_->second), part_->first.size(part_->second));
  tensor = tensor.to(device_, /*non_blocking=*/true);
}

WEFT_INLINE at::Tensor gathered(std::vector<at::Tensor> const& parts, std::size_t output, at::Device device) {
  auto const& first = parts.front();
  std::vector<at::Tensor> here;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    auto const& tensor = parts[part];
    bool const alike = tensor.defined() == first.defined() &&
                       (!first.defined() ||
                        (tensor.dim() == first.dim() && tensor.scalar_type() == first.scalar_type() &&
                         (first.dim() == 0 || tensor.sizes().slice(1) == first.sizes().slice(1))));
    if (!alike) {
      auto const describe = [](at::Tensor const& it) {
        return it.defined() ? core::message(it.sizes(), " of ", it.scalar_type()) : std::string("nothing");
      };
      fail<ConfigurationError>("weft: DataParallel puts outputs together along dim 0, but output ", output, " is ",
                               describe(first), " on device 0 and ", describe(tensor), " on device ", part,
                               "; let sizes beyond the first not depend on the batch");
    }
    if (first.defined()) here.push_back(tensor.to(device));
  }
  if (here.empty()) return {};
  return first.dim() == 0 ? at::stack(here) : at::cat(here);
}

}  // namespace weft::data_parallel
