// fabric/optimizing.ipp -- definitions of fabric/optimizing.hpp.
#pragma once

#include <weft/fabric/optimizing.hpp>

#include <ATen/ATen.h>
#include <torch/optim/lbfgs.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::fabric {

WEFT_INLINE std::vector<optim::NamedParameter> trainable_parameters(std::vector<model::ModelState*> const& models) {
  std::vector<optim::NamedParameter> parameters;
  for (std::size_t i = 0; i < models.size(); ++i)
    for (auto const& row : models[i]->table.rows())
      if (row.trainable)
        parameters.push_back({models.size() == 1 ? row.name : std::to_string(i) + "." + row.name, row.tensor});
  return parameters;
}

WEFT_INLINE void require_parameters_of(std::vector<model::ModelState*> const& models,
                                       torch::optim::Optimizer const& optimizer, char const* call) {
  auto const& groups = optimizer.param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group)
    for (std::size_t i = 0; i < groups[group].params().size(); ++i)
      if (auto const& parameter = groups[group].params()[i];
          std::none_of(models.begin(), models.end(),
                       [&](auto const* model) { return model->table.index_of(parameter).has_value(); }))
        fail<ConfigurationError>(
            "weft: ", call, ": the optimizer's parameter ", i, " of group ", group, ", of shape ", parameter.sizes(),
            ", does not belong to ", models.size() == 1 ? "this model" : "these models", "; build the optimizer from ",
            models.size() == 1 ? "this model's" : "their",
            " parameters, or pass a description such as weft::AdamW{}; several models are named by std::tie(a, b)");
}

WEFT_INLINE void refuse_lbfgs(std::vector<model::ModelState*> const& models, torch::optim::Optimizer const& optimizer,
                              std::string_view scaling) {
  if (!dynamic_cast<torch::optim::LBFGS const*>(&optimizer)) return;
  if (!scaling.empty())
    fail<ConfigurationError>("weft: setup: LBFGS runs backward while it steps, which the loss scaling of ", scaling,
                             " cannot follow; write Bf16Mixed or Fp32 beside it, or weft::AdamW{}");
  for (auto const* const model : models)
    for (auto const& row : model->table.rows())
      if (!row.placements.empty())
        fail<ConfigurationError>("weft: setup: LBFGS steps by dot products over whole parameters, but ", row.name,
                                 " is cut over ranks; write weft::AdamW{} or another optimizer that steps by element, "
                                 "or keep parameters whole (DDP<>, FSDP<NoShard>)");
}

}  // namespace weft::fabric
