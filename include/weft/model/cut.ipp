// model/cut.ipp -- definitions of model/cut.hpp.
#pragma once

#include <weft/model/cut.hpp>

#include <vector>

#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_strided.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/init/deferred_storage.hpp>

namespace weft::inline v0::model {

WEFT_INLINE at::Tensor shard_of(at::Tensor const& values, Shard const& placement, int size, int coordinate) {
  at::NoGradGuard const no_grad;
  auto const whole = values.detach();
  auto const part_size = whole.size(placement.dim) / placement.parts;
  auto const chunk = (part_size + size - 1) / size;
  auto const begin = std::min<int64_t>(coordinate * chunk, part_size);
  auto const length = std::min<int64_t>(chunk, part_size - begin);
  std::vector<at::Tensor> pieces;
  for (int64_t part = 0; part < placement.parts; ++part)
    pieces.push_back(whole.narrow(placement.dim, part * part_size + begin, length));
  auto const kept = pieces.size() == 1 ? pieces.front() : at::cat(pieces, placement.dim);
  return at::empty_strided(kept.sizes(), at::infer_dense_strides(kept.sizes(), strides_without_gaps(whole)),
                           kept.options())
      .copy_(kept);
}

WEFT_INLINE void cut(ParameterRow& row, std::string const& axis, Shard const& placement,
                     MechanismContext const& context) {
  if (placement.dim < 0 || placement.dim >= static_cast<int64_t>(row.local_shape.size()))
    fail<ConfigurationError>("weft: setup: parameter ", row.name, " has ", row.local_shape.size(), " dims, but dim ",
                             placement.dim, " is to be divided over the axis \"", axis, "\"; name a dim that it has");
  plan::Cut const how{placement, context.size(axis), context.mesh().coordinate(axis)};
  row.placements.push_back({axis, placement});
  row.local_shape = plan::local_shape(row.local_shape, std::vector{how});
  row.local_strides = at::infer_dense_strides(row.local_shape, row.local_strides);
  if (init::is_deferred(row.tensor)) return;
  row.tensor.set_data(shard_of(row.tensor, placement, how.size, how.coordinate));
}

}  // namespace weft::model
