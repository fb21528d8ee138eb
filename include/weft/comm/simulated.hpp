// comm/simulated.hpp -- what the policy Simulated creates: one rank of a group whose other ranks are not there.
// In: a rank and a size. Out: a c10d::Backend that moves nothing, and the time that a link would take.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

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
  Handle allgather(std::vector<Tensors>& outputs, Tensors& inputs, c10d::AllgatherOptions const&) override;
  Handle _allgather_base(at::Tensor& output, at::Tensor& input, c10d::AllgatherOptions const&) override {
    repeat(output, input);
    return done({output});
  }
  Handle _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                              c10d::ReduceScatterOptions const& options) override;
  Handle reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                        c10d::ReduceScatterOptions const& options) override;
  Handle alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                       std::vector<std::int64_t>& input_sizes, c10d::AllToAllOptions const&) override;
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
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

   private:
    Tensors outputs_;
    at::Tensor received_;
  };
  static Handle done(Tensors outputs) { return c10::make_intrusive<Done>(std::move(outputs)); }

  void repeat(at::Tensor const& output, at::Tensor const& input) const;
  void reduce_equals(at::Tensor const& tensor, c10d::ReduceOp const& op) const;
};

template <std::size_t World, class LinkModel>
struct BackendFactory<Simulated<World, LinkModel>> {
  static constexpr c10d::ProcessGroup::BackendType type = c10d::ProcessGroup::BackendType::CUSTOM;
  static c10::intrusive_ptr<c10d::Backend> create(Endpoint const& endpoint) {
    return c10::make_intrusive<SimulatedBackend>(endpoint.rank, endpoint.size);
  }
};

/// Messages that one rank sends after another in a ring: each waits for the one before it.
int ring_steps(Kind kind, int group_size);

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

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/simulated.ipp>
#endif
