// precision/rules.ipp -- definitions of precision/rules.hpp.
#pragma once

#include <weft/core/build.hpp>
#include <weft/precision/rules.hpp>

namespace weft::inline v0::precision {

WEFT_INLINE at::ScalarType Rules::parameter_dtype(torch::nn::Module const& owner, std::string const& name,
                                                  at::Tensor const& parameter) const {
  static_cast<void>(name);
  if (config_.stored == Number::fp32 || (config_.stored != config_.buffers && keeps_statistics(owner)))
    return parameter.scalar_type();
  return dtype_of(config_.stored);
}

WEFT_INLINE at::ScalarType Rules::buffer_dtype(torch::nn::Module const& owner, std::string const& name,
                                               at::Tensor const& buffer) const {
  static_cast<void>(name);
  bool const is_cast = config_.computed != config_.stored &&
                       (!config_.autocast || config_.autocast_inputs);  // see [Note: layers that keep statistics]
  return config_.buffers == Number::fp32 || (is_cast && keeps_statistics(owner)) ? buffer.scalar_type()
                                                                                 : dtype_of(config_.buffers);
}

}  // namespace weft::precision
