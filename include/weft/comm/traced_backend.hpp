// comm/traced_backend.hpp -- a c10d backend that tells a recorder what passes through it.
// In: any c10d backend. Out: the same backend, with one event per collective, whoever issued it (weft or c10d's Reducer).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <weft/comm/trace.hpp>

namespace weft::comm {

class TracedBackend final : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  TracedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<Recorder> recorder)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), recorder_(std::move(recorder)) {}

  std::string const getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<c10d::Backend> const& inner() const { return inner_; }

  Work broadcast(Tensors& tensors, c10d::BroadcastOptions const& options) override {
    note(Kind::broadcast, tensors);
    return inner_->broadcast(tensors, options);
  }
  Work allreduce(Tensors& tensors, c10d::AllreduceOptions const& options) override {
    note(Kind::all_reduce, tensors);
    return inner_->allreduce(tensors, options);
  }
  Work allreduce_coalesced(Tensors& tensors, c10d::AllreduceCoalescedOptions const& options) override {
    note(Kind::all_reduce, tensors);
    return inner_->allreduce_coalesced(tensors, options);
  }
  Work reduce(Tensors& tensors, c10d::ReduceOptions const& options) override {
    note(Kind::reduce, tensors);
    return inner_->reduce(tensors, options);
  }
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs, c10d::AllgatherOptions const& options) override {
    note(Kind::all_gather, outputs);
    return inner_->allgather(outputs, inputs, options);
  }
  // The names of torch before 2.15; from then on the newer *_single names arrive here through c10d's own forwarding.
  Work _allgather_base(at::Tensor& output, at::Tensor& input, c10d::AllgatherOptions const& options) override {
    recorder_->note(Kind::all_gather, getSize(), output.nbytes());
    return inner_->_allgather_base(output, input, options);
  }
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input, c10d::ReduceScatterOptions const& options) override {
    recorder_->note(Kind::reduce_scatter, getSize(), input.nbytes());
    return inner_->_reduce_scatter_base(output, input, options);
  }
  Work reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, c10d::ReduceScatterOptions const& options) override {
    note(Kind::reduce_scatter, inputs);
    return inner_->reduce_scatter(outputs, inputs, options);
  }
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs, c10d::GatherOptions const& options) override {
    note(Kind::gather, inputs);
    return inner_->gather(outputs, inputs, options);
  }
  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs, c10d::ScatterOptions const& options) override {
    note(Kind::scatter, outputs);
    return inner_->scatter(outputs, inputs, options);
  }
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes, c10d::AllToAllOptions const& options) override {
    recorder_->note(Kind::all_to_all, getSize(), input.nbytes());
    return inner_->alltoall_base(output, input, output_sizes, input_sizes, options);
  }
  Work alltoall(Tensors& outputs, Tensors& inputs, c10d::AllToAllOptions const& options) override {
    note(Kind::all_to_all, inputs);
    return inner_->alltoall(outputs, inputs, options);
  }
  Work send(Tensors& tensors, int to, int tag) override {
    note(Kind::send, tensors);
    return inner_->send(tensors, to, tag);
  }
  Work recv(Tensors& tensors, int from, int tag) override {
    note(Kind::recv, tensors);
    return inner_->recv(tensors, from, tag);
  }
  Work recvAnysource(Tensors& tensors, int tag) override {
    note(Kind::recv, tensors);
    return inner_->recvAnysource(tensors, tag);
  }
  Work barrier(c10d::BarrierOptions const& options) override {
    recorder_->note(Kind::barrier, getSize(), 0);
    return inner_->barrier(options);
  }

 private:
  void note(Kind kind, Tensors const& tensors) {
    std::size_t bytes = 0;
    for (auto const& tensor : tensors) bytes += tensor.nbytes();
    recorder_->note(kind, getSize(), bytes);
  }
  void note(Kind kind, std::vector<Tensors> const& lists) {
    std::size_t bytes = 0;
    for (auto const& list : lists)
      for (auto const& tensor : list) bytes += tensor.nbytes();
    recorder_->note(kind, getSize(), bytes);
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::shared_ptr<Recorder> recorder_;
};

}  // namespace weft::comm
