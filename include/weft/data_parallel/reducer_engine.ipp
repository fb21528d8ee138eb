// data_parallel/reducer_engine.ipp -- definitions of data_parallel/reducer_engine.hpp.
#pragma once

#include <weft/data_parallel/reducer_engine.hpp>

#include <cstdint>
#include <unordered_map>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <weft/activation/recompute_scope.hpp>
#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/unit/walk.hpp>

namespace weft::inline v0::data_parallel {

WEFT_INLINE std::shared_ptr<Engine> Engine::create(torch::nn::Module& model, model::ParameterTable& table,
                                                   DdpConfig const& config, std::shared_ptr<comm::Communicator> ranks,
                                                   std::unique_ptr<c10d::CommHookInterface> hook) {
  auto engine = std::shared_ptr<Engine>(new Engine(model, table, config, std::move(ranks), std::move(hook)));
  if (!config.static_graph) engine->make_reducer();
  return engine;
}

WEFT_INLINE void Engine::pre_forward() {
  if (sync_ != model::BackwardSync::reduce || closed_ || activation::is_recomputing()) return;
  // Collectives only where all ranks train: one rank may evaluate or generate alone, or one batch longer.
  if (!at::GradMode::is_enabled()) return;
  if (armed_) abandon_pass();
  drain();
  if (config_.broadcast_buffers && has_buffers_)
    broadcast_buffers(join_ ? join_->announce(*this, JoinStep::forward).front() : 0);
}

WEFT_INLINE void Engine::post_forward(std::vector<at::Tensor*> const& outputs) {
  if (!at::GradMode::is_enabled() || closed_) return;
  // Frozen whole for a while, as a GAN's discriminator while the generator learns: gradients pass through, and none
  // arrives.
  if (std::none_of(parameters_.begin(), parameters_.end(),
                   [](at::Tensor const& parameter) { return parameter.requires_grad(); }))
    return;
  unit::add_backward_hook(shared_from_this(), outputs);
}

WEFT_INLINE void Engine::close() {
  if (closed_) return;
  closed_ = true;
  for (auto& hook : hooks_) hook.disconnect();
  if (reducer_) reducer_->remove_autograd_hooks();
  logger_.reset();
  reducer_.reset();
  ranks_.reset();
}

WEFT_INLINE void Engine::pre_backward() {
  if (closed_) return;
  auto const task = torch::autograd::get_current_graph_task_id();
  if (in_pass_ && task == task_) return;  // several calls of the model under one loss
  if (in_pass_ || armed_) abandon_pass();
  table_.refuse_incomplete_gradients(ranks_->rank());
  in_pass_ = true;
  task_ = task;
  num_arrived_ = 0;
  auto& autograd = torch::autograd::Engine::get_default_engine();
  if (sync_ != model::BackwardSync::reduce)
    return autograd.queue_callback([self = shared_from_this()] { self->in_pass_ = false; });
  drain();
  auto const present = join_ ? join_->announce(*this, JoinStep::backward) : std::vector<int>();
  armed_ = true;
  for (auto const& [name, parameter] : frozen_)
    if (parameter.requires_grad())
      fail<Error>("weft: DDP, rank ", ranks_->rank(), ": parameter ", name,
                  " was frozen at setup and requires a gradient now, so it would not be averaged;",
                  " unfreeze it before setup, or set the model up again");
  bool const learns_graph = config_.static_graph && !reducer_;
  if (learns_graph) make_reducer();
  if (join_)
    reducer_->set_forward_pass_work_handle(c10::make_intrusive<Counted>(static_cast<int>(present.size())),
                                           join_->options().divide_by_initial_world_size);
  reducer_->prepare_for_forward();
  if (!learns_graph)
    reducer_->rebuild_buckets();  // once, after the first backward, in the order in which gradients came
  reducer_->prepare_for_backward(config_.find_unused && !config_.static_graph ? used_outputs()
                                                                              : std::vector<at::Tensor>());
  if (learns_graph) autograd.queue_callback([self = shared_from_this()] { self->reducer_->delay_all_reduce(); });
  autograd.queue_callback([self = shared_from_this()] { self->finish_backward(); });
}

WEFT_INLINE void Engine::set_join(Join* join) {
  if (join && has_hook_ && !join->options().divide_by_initial_world_size)
    fail<ConfigurationError>(
        "weft: join: CommHook, and a precision that reduces in other numbers, divide by all ranks, and "
        "divide_by_initial_world_size = false asks for those that have a batch; leave one of the two out");
  if (join)
    unit::for_each_module(model_, [](std::string const& path, torch::nn::Module& module) {
      if (auto const* const layer = dynamic_cast<unit::HasBatchStatistics const*>(&module); layer && layer->statistics)
        fail<ConfigurationError>("weft: join: ", path,
                                 " has its statistics from all ranks (convert_sync_batchnorm), inside of forward, "
                                 "where a rank without a batch cannot answer; leave one of the two out");
    });
  if (!join && reducer_) reducer_->set_forward_pass_work_handle(nullptr, /*useStaticWorldSize=*/true);
  join_ = join;
}

WEFT_INLINE void Engine::answer(JoinStep step, std::vector<int> const& present) {
  if (step == JoinStep::forward) return broadcast_buffers(present.front());
  if (!reducer_)
    fail<Error>("weft: join, rank ", ranks_->rank(),
                ": StaticGraph learns the graph from the first pass that reduces, and this rank has no batch for it; "
                "give each rank one at least, or write DDP<>");
  reducer_->rebuild_buckets();
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> reductions;
  for (auto& bucket : reducer_->get_grad_buckets(/*return_zero_tensors=*/true))
    reductions.push_back(reducer_->run_comm_hook(bucket));
  for (auto const& reduction : reductions) reduction->waitAndThrow();
  if (config_.find_unused && !config_.static_graph) {
    std::vector<at::Tensor> none_used{at::zeros_like(reducer_->get_local_used_map_on_device())};
    ranks_->process_group()->allreduce(none_used)->wait();
  }
  reducer_->push_rebuilt_params_for_all_indices();  // for the order of buckets: that of registration, unless this is
                                                    // not rank 0
}

WEFT_INLINE void Engine::take_model(int source) {
  std::vector<at::Tensor> tensors;
  for (auto const& parameter : parameters_) tensors.push_back(parameter.detach());
  for (auto const& [name, parameter] : frozen_) tensors.push_back(parameter.detach());
  broadcast(std::move(tensors), source);
  broadcast_buffers(source);
}

WEFT_INLINE Engine::Counted::Counted(int ranks)
    : future(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
  future->markCompleted(c10::IValue(std::vector<at::Tensor>{at::full({1}, ranks)}));
}

WEFT_INLINE Engine::Engine(torch::nn::Module& model, model::ParameterTable& table, DdpConfig const& config,
                           std::shared_ptr<comm::Communicator> ranks, std::unique_ptr<c10d::CommHookInterface> hook)
    : model_(model), table_(table), config_(config), ranks_(std::move(ranks)), hook_(std::move(hook)) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    auto const& row = table.rows()[i];
    if (!row.trainable) {
      frozen_.emplace_back(row.name, row.tensor);
      continue;
    }
    names_.push_back(row.name);
    parameters_.push_back(row.tensor);
    rows_.push_back(i);
  }
  arrived_in_.assign(parameters_.size(), -1);
  if (parameters_.empty())
    fail<ConfigurationError>(
        "weft: DDP: the model has no parameter that requires a gradient, so there is nothing to train in parallel;",
        " unfreeze some, or use it without setup_module");
  has_hook_ = hook_ != nullptr;
  has_buffers_ = !model.buffers().empty();
  // Before the reducer's own, which run after them on the same accumulators.
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    hooks_.emplace_back(parameters_[i], [this, i] { gradient_arrived(i); });
}

WEFT_INLINE void Engine::make_reducer() {
  // Before the first backward the order of gradients is unknown: the reverse of registration is the best guess.
  std::vector<at::Tensor> const reversed(parameters_.rbegin(), parameters_.rend());
  auto const first = static_cast<std::size_t>(config_.first_bucket_bytes),
             rest = static_cast<std::size_t>(config_.bucket_bytes);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(reversed, {std::min(first, rest), rest});
  for (auto& bucket : buckets)
    for (auto& index : bucket) index = parameters_.size() - 1 - index;
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < names_.size(); ++i) names.emplace(i, names_[i]);
  reducer_ = std::make_shared<c10d::Reducer>(
      parameters_, std::move(buckets), ranks_->process_group(), std::vector<bool>(parameters_.size(), false),
      static_cast<int64_t>(rest), config_.find_unused, config_.gradients_in_buckets, std::move(names),
      static_cast<int64_t>(std::min(first, rest)), /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, std::vector<int64_t>{});
  logger_ = std::make_shared<c10d::Logger>(reducer_);  // the reducer takes its presence for granted
  reducer_->set_logger(logger_);
  if (config_.static_graph) reducer_->set_static_graph();
  if (hook_) reducer_->register_comm_hook(std::move(hook_));
}

WEFT_INLINE void Engine::gradient_arrived(std::size_t index) {
  if (sync_ == model::BackwardSync::accumulate) table_.note_gradient(rows_[index], model::GradientState::local_sum);
  if (sync_ != model::BackwardSync::reduce) return void(++num_arrived_);
  if (!armed_)
    fail<Error>("weft: DDP, rank ", ranks_->rank(), ": a gradient of parameter ", names_[index],
                " arrived, but the loss does not come from the wrapped model:",
                " call model(...) or model.call<&M::method>(...), so that gradients are averaged over ranks;",
                " if they should stay local, put the backward under no_backward_sync");
  ++num_arrived_;
  arrived_in_[index] = task_;
}

WEFT_INLINE void Engine::finish_backward() {
  armed_ = in_pass_ = false;
  if (config_.find_unused || config_.static_graph || num_arrived_ == parameters_.size())
    return table_.forget_gradients();
  auto const* const wanted = torch::autograd::get_current_graph_task_exec_info();
  if (num_arrived_ == 0 && wanted && !wanted->empty())
    return reducer_->reset_state();  // torch::autograd::grad: of an input, say, on all ranks alike
  std::string unused;
  std::size_t count = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (arrived_in_[i] == task_) continue;
    if (++count <= 10) unused += (unused.empty() ? "" : ", ") + names_[i];
  }
  if (count > 10) unused += ", ...";
  abandon_pass();
  fail<Error>("weft: DDP, rank ", ranks_->rank(), ": ", count, " of ", parameters_.size(),
              " parameters got no gradient in this backward: ", unused,
              ". Other ranks wait for them. Write DDP<FindUnused> if some stay unused, or freeze them "
              "(requires_grad_(false)) before setup");
}

WEFT_INLINE void Engine::abandon_backward() noexcept {
  if (in_pass_ || armed_) abandon_pass();
}

WEFT_INLINE void Engine::abandon_pass() {
  if (std::exchange(armed_, false) && reducer_) {
    reducer_->reset_state();
    to_drain_ = true;
  }
  in_pass_ = false;
  if (std::exchange(num_arrived_, 0) == 0) return;
  for (auto const row : rows_) table_.note_gradient(row, model::GradientState::incomplete);
}

WEFT_INLINE void Engine::drain() {
  if (std::exchange(to_drain_, false) && !join_) ranks_->barrier();  // also waits for what was begun before it
}

WEFT_INLINE std::vector<at::Tensor> Engine::used_outputs() {
  struct Used final : torch::autograd::Node {
    torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
  };
  auto const* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  torch::autograd::edge_list edges;
  for (auto const& hook : hooks_)
    if (!nodes || nodes->count(hook.accumulator().get())) edges.emplace_back(hook.accumulator(), 0);
  auto const node = comm::make_node<Used>();
  node->set_next_edges(std::move(edges));
  auto output = at::empty({0});
  torch::autograd::set_history(output, node);
  return {output};
}

WEFT_INLINE void Engine::broadcast_buffers(int source) {
  std::vector<at::Tensor> buffers;
  for (auto const& buffer : model_.buffers())
    if (buffer.defined()) buffers.push_back(buffer.variable_data());
  broadcast(std::move(buffers), source);
}

WEFT_INLINE void Engine::broadcast(std::vector<at::Tensor> tensors, int source) {
  at::NoGradGuard const no_grad;
  if (!tensors.empty()) c10d::broadcast_coalesced(ranks_->process_group(), tensors, std::size_t{250} << 20, source);
}

}  // namespace weft::data_parallel
