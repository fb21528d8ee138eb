// model/clip.ipp -- definitions of model/clip.hpp.
#pragma once

#include <weft/model/clip.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::model {

WEFT_INLINE at::Tensor add_up(at::Tensor const& partial, double norm_type, comm::Communicator& ranks) {
  if (!std::isinf(norm_type)) {
    auto const sum = partial.clone();
    ranks.all_reduce(sum, ReduceOp::sum);
    return sum;
  }
  // A maximum of NaN and a number is whatever the backend makes of it: NaN travels as a flag.
  auto const pair = at::stack({partial.nan_to_num(0.0, INFINITY), partial.isnan().to(partial.scalar_type())});
  ranks.all_reduce(pair, ReduceOp::max);
  return pair[1].item<double>() > 0 ? at::full_like(partial, NAN) : pair[0];
}

WEFT_INLINE at::Tensor clip(std::vector<Clipped> const& models, std::vector<at::Tensor> const& parameters,
                            ClipNorm const& clip) {
  optim::check(clip);
  struct Cut {
    std::vector<std::string> axes;  // none: replicated, and counted once
    bool ignored;                   // each rank has a gradient of its own
    std::vector<at::Tensor> parameters;
  };
  std::vector<Cut> cuts;
  for (auto const& parameter : parameters) {
    auto const owner = std::find_if(models.begin(), models.end(),
                                    [&](Clipped const& model) { return model.table->index_of(parameter).has_value(); });
    auto const& row = owner->table->rows()[*owner->table->index_of(parameter)];
    auto axes = divided_over(row);
    auto cut = std::find_if(cuts.begin(), cuts.end(),
                            [&](Cut const& other) { return other.axes == axes && other.ignored == row.ignored; });
    if (cut == cuts.end()) cut = cuts.insert(cut, {std::move(axes), row.ignored, {}});
    cut->parameters.push_back(parameter);
  }
  at::NoGradGuard const no_grad;
  at::Tensor total;
  for (auto const& [axes, ignored, cut] : cuts) {
    auto partial = optim::partial_norm(optim::gradients_of(cut), clip.norm_type);
    for (auto const& axis : axes)
      if (auto const& ranks = models.front().session->mesh->axis(axis))
        partial = add_up(partial, clip.norm_type, *ranks);
    if (auto const& world = models.front().session->world; ignored && world && world->size() > 1)
      partial = add_up(partial, INFINITY, *world);
    if (!total.defined())
      total = partial;
    else
      total = std::isinf(clip.norm_type) ? at::maximum(total, partial) : total + partial;
  }
  auto const norm = optim::norm_of(total, clip.norm_type).to(optim::norm_dtype(parameters));
  optim::scale_gradients(optim::gradients_of(parameters), norm, clip);
  return norm;
}

}  // namespace weft::model
