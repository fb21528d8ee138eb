// report/logger.ipp -- definitions of report/logger.hpp.
#pragma once

#include <weft/report/logger.hpp>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::report {

WEFT_INLINE void Scalar::check(std::string_view name) const {
  auto const* const tensor = std::get_if<at::Tensor>(&value_);
  if (name.empty() || name == "step")
    fail<ConfigurationError>("weft: log: a value is named \"", name, "\"; give it a name, other than that of the step");
  if (!tensor) return;
  if (!tensor->defined())
    fail<ConfigurationError>("weft: log: ", name,
                             " is an undefined tensor; log a tensor with one element, or a number");
  if (tensor->numel() != 1 || tensor->is_complex())
    fail<ConfigurationError>("weft: log: ", name, " is a tensor of shape ", tensor->sizes(), " and dtype ",
                             tensor->scalar_type(), "; log one real number: its mean(), say");
}

WEFT_INLINE double Scalar::value() const {
  auto const* const tensor = std::get_if<at::Tensor>(&value_);
  return tensor ? tensor->item<double>() : std::get<double>(value_);
}

}  // namespace weft::report
