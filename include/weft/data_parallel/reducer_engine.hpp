// data_parallel/reducer_engine.hpp -- one replicated model on c10d::Reducer.
// In: a model that is equal on all ranks. Out: after each backward, gradients averaged over the ranks.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <weft/comm/communicator.hpp>
#include <weft/data_parallel/join.hpp>
#include <weft/fwd.hpp>
#include <weft/model/engine.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/strategy/ddp.hpp>
#include <weft/unit/backward_hook.hpp>
#include <weft/unit/batch_statistics.hpp>
#include <weft/unit/gradient_hook.hpp>

namespace weft::inline v0::data_parallel {

/// [Note: armed by backward, not by forward] PyTorch's DDP prepares the reducer in forward, so two forwards before two
/// backwards reduce only once, and a term of the loss that skips the model's output is found an iteration late. Here
/// the backward hook of the root model prepares it when a gradient arrives, once per backward pass: any number of
/// forwards before a backward, several backwards before a step and a graph kept for a second pass are ordinary, and
/// what stays unused is named by the pass in which it did.
class Engine final : public JoinableEngine, public unit::BackwardHook, public std::enable_shared_from_this<Engine> {
 public:
  static std::shared_ptr<Engine> create(torch::nn::Module& model, model::ParameterTable& table, DdpConfig const& config,
                                        std::shared_ptr<comm::Communicator> ranks,
                                        std::unique_ptr<c10d::CommHookInterface> hook);
  ~Engine() override { Engine::close(); }

  void pre_forward() override;

  void post_forward(std::vector<at::Tensor*> const& outputs) override;

  model::BackwardSync set_backward_sync(model::BackwardSync sync) override { return std::exchange(sync_, sync); }
  void abandon_backward() noexcept override;
  bool guards_units() const override { return true; }

  void visit_unsharded(Rows const& rows, model::Visit what, c10::function_ref<void(Rows const&)> visit) override {
    if (what != model::Visit::read_on_first || ranks_->rank() == 0) visit(rows);
  }

  void close() override;

  /// A gradient reached the model's output: the pass is one that reduces, unless a guard says otherwise.
  void pre_backward() override;

  void set_join(Join* join) override;

  /// For a rank that has no batch: what the others' pass does to the group, with zeros.
  void answer(JoinStep step, std::vector<int> const& present) override;

  void take_model(int source) override;

 private:
  /// How many ranks a sum is divided by, as c10d::Reducer asks for it.
  struct Counted final : c10d::Work {
    explicit Counted(int ranks);
    bool isCompleted() override { return true; }
    bool wait(std::chrono::milliseconds) override { return true; }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
    c10::intrusive_ptr<c10::ivalue::Future> future;
  };

  Engine(torch::nn::Module& model, model::ParameterTable& table, DdpConfig const& config,
         std::shared_ptr<comm::Communicator> ranks, std::unique_ptr<c10d::CommHookInterface> hook);

  /// [Note: a static graph is learned from the first reduced pass] c10d counts how often each parameter arrives from
  /// the reducer's first backward until the first reduction, passes that only accumulate included, and later expects
  /// that count in each pass that reduces. So with a static graph the reducer is made when the first such pass begins.
  void make_reducer();

  void gradient_arrived(std::size_t index);

  void finish_backward();

  /// A pass that began never ended: an exception left it. On all ranks alike the reducer can start over.
  void abandon_pass();
  /// Reductions that such a pass has begun would write into the next one's buckets.
  void drain();

  /// A tensor whose graph holds exactly the parameters that this backward pass will reach, taken from autograd's own
  /// list: right for several outputs, several calls, and outputs that the loss does not use.
  std::vector<at::Tensor> used_outputs();

  /// The registered tensors are looked up each time: a module may have put new ones there. variable_data() leaves the
  /// version counters alone, so a forward whose backward is still to come stays valid.
  void broadcast_buffers(int source);
  void broadcast(std::vector<at::Tensor> tensors, int source);

  torch::nn::Module& model_;  // owned by the wrapped model, which owns this engine
  model::ParameterTable& table_;
  std::vector<std::size_t> rows_;  // of the parameters
  DdpConfig config_;
  std::shared_ptr<comm::Communicator> ranks_;
  std::unique_ptr<c10d::CommHookInterface> hook_;  // until the reducer has it
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::pair<std::string, at::Tensor>> frozen_;
  std::vector<unit::GradientHook> hooks_;  // of the parameters
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
  Join* join_ = nullptr;
  bool has_hook_ = false;
  bool has_buffers_ = false;
  model::BackwardSync sync_ = model::BackwardSync::reduce;
  bool armed_ = false;     // the reducer waits for gradients
  bool in_pass_ = false;   // one that reduces, or one that does not
  bool to_drain_ = false;  // reductions of a pass that failed may be under way
  bool closed_ = false;
  int task_ = -1;
  std::size_t num_arrived_ = 0;
  std::vector<int> arrived_in_;  // the task that each parameter's gradient has come in last
};

}  // namespace weft::data_parallel

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data_parallel/reducer_engine.ipp>
#endif
