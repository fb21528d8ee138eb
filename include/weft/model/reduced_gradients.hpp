// model/reduced_gradients.hpp -- a step is by gradients that mean what the loss says.
// In: an optimizer and the tables of its models. Out: a step rule that refuses sums that nobody has reduced.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include <weft/model/model.hpp>
#include <weft/optim/optimizer.hpp>

namespace weft::inline v0::model {

/// Asked before gradients are unscaled, clipped or stepped by. The optimizer may outlive the models.
class ReducedGradients final : public optim::StepRule {
 public:
  ReducedGradients(std::vector<ModelState*> const& models, torch::optim::Optimizer const& optimizer)
      : optimizer_(&optimizer) {
    for (auto* const model : models) models_.push_back(model->weak_from_this());
  }

  bool unscale() override {
    check();
    return true;
  }
  bool begin_step(torch::optim::Optimizer&, bool has_closure) override {
    if (!has_closure) check();  // a closure makes its own
    return true;
  }

 private:
  void check() const {
    for (auto const& weak : models_)
      if (auto const model = weak.lock(); model && model->table.has_notes()) refuse(*model);
  }
  void refuse(ModelState const& model) const;

  std::vector<std::weak_ptr<ModelState>> models_;
  torch::optim::Optimizer const* optimizer_;
};

}  // namespace weft::model

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/model/reduced_gradients.ipp>
#endif
