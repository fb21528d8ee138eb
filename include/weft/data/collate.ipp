// data/collate.ipp -- definitions of data/collate.hpp.
#pragma once

#include <weft/data/collate.hpp>

#include <ATen/ops/stack.h>

#include <weft/core/build.hpp>
#include <weft/core/visit.hpp>

namespace weft::inline v0::data::detail {

WEFT_INLINE at::Tensor stacked(std::vector<at::Tensor> const& tensors) {
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i].sizes() != tensors[0].sizes())
      require_alike(false, i, "a tensor of shape", core::message(tensors[i].sizes()),
                    core::message(tensors[0].sizes()));
  return at::stack(tensors);
}

}  // namespace weft::data::detail
