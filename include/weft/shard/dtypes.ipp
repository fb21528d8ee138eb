// shard/dtypes.ipp -- definitions of shard/dtypes.hpp.
#pragma once

#include <weft/shard/dtypes.hpp>

#include <string>

#include <weft/core/build.hpp>
#include <weft/unit/walk.hpp>

namespace weft::inline v0::shard {

WEFT_INLINE Dtypes dtypes_of(at::ScalarType kept, bool has_statistics, PrecisionConfig const& config) {
  if (!c10::isFloatingType(kept)) return {kept, kept};
  bool const casts = config.computed != config.stored;
  auto const reduced = casts || kept == dtype_of(config.stored) ? dtype_of(config.reduced) : kept;
  return {casts && !has_statistics ? dtype_of(config.computed) : kept, reduced};
}

WEFT_INLINE std::unordered_set<at::TensorImpl*> parameters_with_statistics(torch::nn::Module& model) {
  std::unordered_set<at::TensorImpl*> found;
  unit::for_each_module(model, [&](std::string const&, torch::nn::Module& layer) {
    if (!precision::keeps_statistics(layer)) return;
    for (auto const& parameter : layer.parameters(/*recurse=*/false)) found.insert(parameter.unsafeGetTensorImpl());
  });
  return found;
}

}  // namespace weft::shard
