// model/engine_stack.hpp -- several engines on one model, each on its own axes.
// In: engines in the order in which they cut parameters. Out: one engine.
//
//   cut               tensor parallel, then sharding            what is cut first lies around
//   forward, summon   sharding, tensor ... tensor, sharding     who unshards enters first and leaves last
//
// One engine by itself is no stack, and costs nothing more.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <weft/model/engine.hpp>

namespace weft::inline v0::model {

/// `first` cut before `then` did. Either may be a stack, or null: the other one then.
std::shared_ptr<Engine> stacked(std::shared_ptr<Engine> first, std::shared_ptr<Engine> then);

class EngineStack final : public Engine {
 public:
  explicit EngineStack(std::vector<std::shared_ptr<Engine>> engines) : engines_(std::move(engines)) {}

  /// In the order in which they cut.
  std::vector<std::shared_ptr<Engine>> const& engines() const { return engines_; }

  at::Tensor take(ParameterRow const& row, at::Tensor values) override;
  void pre_forward() override;
  void post_forward(std::vector<at::Tensor*> const& outputs) override;
  void abandon_forward() noexcept override;
  void abandon_backward() noexcept override;
  BackwardSync set_backward_sync(BackwardSync sync) override;
  bool guards_units() const override;
  bool hears_steps() const override;
  void before_step(torch::optim::Optimizer& optimizer) override;
  void after_step(torch::optim::Optimizer& optimizer) override;
  void unshard_all() override;
  void reshard_all(bool keep_changes) override;
  void visit_unsharded(Rows const& rows, Visit what, c10::function_ref<void(Rows const&)> visit) override;
  void show_shapes(bool unsharded) override;
  bool scale_gradient(at::Tensor const& parameter, at::Tensor const& factor) override;
  void close() override;

 private:
  void visit_from(std::size_t last, Rows const& rows, Visit what, c10::function_ref<void(Rows const&)> visit);

  std::vector<std::shared_ptr<Engine>> engines_;
  BackwardSync sync_ = BackwardSync::reduce;
};

}  // namespace weft::model

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/model/engine_stack.ipp>
#endif
