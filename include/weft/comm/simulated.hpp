// comm/simulated.hpp -- what the policy Simulated creates: one rank of a group whose other ranks are not there.
// In: a rank and a size. Out: a c10d::Backend that moves nothing, and the time that a link would take.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <weft/comm/backend.hpp>
#include <weft/comm/trace.hpp>
#include <weft/fwd.hpp>
#include <weft/strategy/machine.hpp>

namespace weft::inline v0::comm {

/// The other ranks hold what this rank holds: a sum is size() times this rank's value, an average, a minimum and a
/// maximum are the value, all_gather repeats this rank's input in every slot, reduce_scatter leaves size() times this
/// rank's chunk, all_to_all repeats the chunk that is meant for this rank, and broadcast and recv leave their tensor.
/// So a data-parallel step is the step of one process on this rank's batch, and a sharded one goes through finite
/// values that mean nothing.
class SimulatedBackend final : public c10d::Backend {
 public:
  using Backend::Backend;
  using Handle = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  std::string const getBackendName() const override { return "simulated"; }

  Handle broadcast(Tensors& tensors, c10d::BroadcastOptions const&) override { return done(tensors); }
  Handle allreduce(Tensors& tensors, c10d::AllreduceOptions const& options) override {
    for (auto& tensor : tensors) reduce_equals(tensor, options.reduceOp);
    return done(tensors);
  }
  Handle allreduce_coalesced(Tensors& tensors, c10d::AllreduceCoalescedOptions const& options) override {
    return allreduce(tensors, options);
  }
  Handle reduce(Tensors& tensors, c10d::ReduceOptions const& options) override {
    if (options.rootRank == getRank())
      for (auto& tensor : tensors) reduce_equals(tensor, options.reduceOp);
    return done(tensors);
  }
  Handle allgather(std::vector<Tensors>& outputs, Tensors& inputs, c10d::AllgatherOptions const&) override {
    at::NoGradGuard const no_grad;
    for (std::size_t i = 0; i < outputs.size(); ++i)
      for (auto& output : outputs[i]) output.copy_(inputs[i]);
    return done(outputs.empty() ? Tensors() : outputs.front());
  }
  Handle _allgather_base(at::Tensor& output, at::Tensor& input, c10d::AllgatherOptions const&) override {
    repeat(output, input);
    return done({output});
  }
  Handle _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                              c10d::ReduceScatterOptions const& options) override {
    at::NoGradGuard const no_grad;
    output.view({-1}).copy_(input.view({getSize(), output.numel()})[getRank()]);
    reduce_equals(output, options.reduceOp);
    // Memory as a real rank has it: comm/gloo.hpp receives the other ranks' chunks, one of them in the output.
    auto const received = input.is_cpu() ? at::empty({std::max(0, getSize() - 2) * output.numel()}, output.options())
                                         : at::Tensor();
    return c10::make_intrusive<Done>(Tensors{output}, received);
  }
  Handle reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                        c10d::ReduceScatterOptions const& options) override {
    at::NoGradGuard const no_grad;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      outputs[i].copy_(inputs[i][static_cast<std::size_t>(getRank())]);
      reduce_equals(outputs[i], options.reduceOp);
    }
    return done(outputs);
  }
  Handle alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                       std::vector<std::int64_t>& input_sizes, c10d::AllToAllOptions const&) override {
    TORCH_CHECK(output_sizes.empty() && input_sizes.empty(),
                "weft: Simulated: all_to_all with uneven splits depends on what the other ranks send");
    repeat(output, input.view({getSize(), -1})[getRank()]);
    return done({output});
  }
  Handle send(Tensors& tensors, int, int) override { return done(tensors); }
  Handle recv(Tensors& tensors, int, int) override { return done(tensors); }
  Handle barrier(c10d::BarrierOptions const&) override { return done({}); }

 private:
  class Done final : public c10d::Work {
   public:
    explicit Done(Tensors outputs, at::Tensor received = {})
        : outputs_(std::move(outputs)), received_(std::move(received)) {
      finish();
    }
    bool wait(std::chrono::milliseconds) override {
      received_.reset();
      return true;
    }
    Tensors result() override { return outputs_; }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {  // c10d::Reducer asks for it
      auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      future->markCompleted(c10::IValue(outputs_));
      return future;
    }

   private:
    Tensors outputs_;
    at::Tensor received_;
  };
  static Handle done(Tensors outputs) { return c10::make_intrusive<Done>(std::move(outputs)); }

  void repeat(at::Tensor const& output, at::Tensor const& input) const {
    at::NoGradGuard const no_grad;
    // This rank's own slot may be the input itself. One call, whatever the number of ranks.
    auto const source = output.is_alias_of(input) ? input.clone() : input;
    output.view({getSize(), input.numel()}).copy_(source.view({1, input.numel()}).expand({getSize(), input.numel()}));
  }
  void reduce_equals(at::Tensor const& tensor, c10d::ReduceOp const& op) const {
    at::NoGradGuard const no_grad;
    if (op == c10d::ReduceOp::SUM) tensor.mul_(getSize());
    if (op == c10d::ReduceOp::PRODUCT) tensor.pow_(getSize());
  }
};

template <std::size_t World, class LinkModel>
struct BackendFactory<Simulated<World, LinkModel>> {
  static constexpr c10d::ProcessGroup::BackendType type = c10d::ProcessGroup::BackendType::CUSTOM;
  static c10::intrusive_ptr<c10d::Backend> create(Endpoint const& endpoint) {
    return c10::make_intrusive<SimulatedBackend>(endpoint.rank, endpoint.size);
  }
};

/// Messages that one rank sends after another in a ring: each waits for the one before it.
inline int ring_steps(Kind kind, int group_size) {
  if (group_size <= 1) return 0;
  switch (kind) {
    case Kind::all_reduce:
      return 2 * (group_size - 1);
    case Kind::send:
    case Kind::recv:
      return 1;
    default:
      return group_size - 1;
  }
}

/// The time that a rank's collectives would take on rings of such links, one after the other: modelled, never measured.
template <class LinkModel>
double modelled_us(std::vector<Event> const& events) {
  double total_ns = 0;
  for (auto const& event : events) {
    total_ns += static_cast<double>(LinkModel::latency_ns) * ring_steps(event.kind, event.group_size);
    if constexpr (LinkModel::bytes_per_second != 0)
      total_ns += ring_bytes(event.kind, event.group_size, event.bytes) * 1e9 /
                  static_cast<double>(LinkModel::bytes_per_second);
  }
  return total_ns / 1e3;
}

}  // namespace weft::comm
