// comm/traced_backend.hpp -- a c10d backend that tells a recorder what passes through it.
// In: any c10d backend. Out: the same backend, with one event per collective, whoever issued it (weft or c10d's
// Reducer), and in the checking grade an error before a collective that ranks don't agree on.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <weft/comm/backend.hpp>
#include <weft/comm/call_check.hpp>
#include <weft/comm/trace.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::comm {

class TracedBackend final : public c10d::Backend {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  TracedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<Recorder> recorder, std::string axis,
                std::optional<CallCheck> check = std::nullopt);

  /// The checking grade's question alone, for a call that has nothing to send.
  template <class... Parts>
  void check(Kind kind, Tensors const& tensors, Parts const&... how) {
    if (!check_) return;
    std::string list;
    for (auto const& tensor : tensors)
      list += core::message(list.empty() ? "" : ", ", tensor.sizes(), " of ", tensor.scalar_type());
    auto const purpose = std::exchange(purpose_, "");
    check_->agree(core::message(name_of(kind), tensors.empty() ? "" : " of ", list, how...,
                                purpose.empty() ? "" : " for ", purpose),
                  std::exchange(limit_, {}));
  }

  /// What the next collective is for, which the checking grade compares, too, and how long ranks may wait for each
  /// other.
  void announce(std::string_view purpose, std::chrono::milliseconds limit) {
    if (!check_) return;
    purpose_ = purpose;
    limit_ = limit;
  }

  /// While `why` is set, calls are errors that say it: the other ranks wait elsewhere. Returns what was set before.
  std::string close(std::string why) { return std::exchange(closed_, std::move(why)); }

  std::string const getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<c10d::Backend> const& inner() const { return inner_; }

  Work broadcast(Tensors& tensors, c10d::BroadcastOptions const& options) override {
    return note(Kind::broadcast, tensors, " from rank ", options.rootRank).follow(inner_->broadcast(tensors, options));
  }
  Work allreduce(Tensors& tensors, c10d::AllreduceOptions const& options) override {
    return note(Kind::all_reduce, tensors, op_name(options.reduceOp)).follow(inner_->allreduce(tensors, options));
  }
  Work allreduce_coalesced(Tensors& tensors, c10d::AllreduceCoalescedOptions const& options) override {
    return note(Kind::all_reduce, tensors, op_name(options.reduceOp))
        .follow(inner_->allreduce_coalesced(tensors, options));
  }
  Work reduce(Tensors& tensors, c10d::ReduceOptions const& options) override {
    return note(Kind::reduce, tensors, op_name(options.reduceOp), " at rank ", options.rootRank)
        .follow(inner_->reduce(tensors, options));
  }
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs, c10d::AllgatherOptions const& options) override {
    return note(Kind::all_gather, flattened(outputs)).follow(inner_->allgather(outputs, inputs, options));
  }
  // The names of torch before 2.15; from then on the newer *_single names arrive here through c10d's own forwarding.
  Work _allgather_base(at::Tensor& output, at::Tensor& input, c10d::AllgatherOptions const& options) override {
    return note(Kind::all_gather, output).follow(inner_->_allgather_base(output, input, options));
  }
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input, c10d::ReduceScatterOptions const& options) override {
    return note(Kind::reduce_scatter, input, op_name(options.reduceOp))
        .follow(inner_->_reduce_scatter_base(output, input, options));
  }
  Work reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      c10d::ReduceScatterOptions const& options) override {
    return note(Kind::reduce_scatter, flattened(inputs), op_name(options.reduceOp))
        .follow(inner_->reduce_scatter(outputs, inputs, options));
  }
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs, c10d::GatherOptions const& options) override {
    return note(Kind::gather, inputs, " at rank ", options.rootRank).follow(inner_->gather(outputs, inputs, options));
  }
  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs, c10d::ScatterOptions const& options) override {
    return note(Kind::scatter, outputs, " from rank ", options.rootRank)
        .follow(inner_->scatter(outputs, inputs, options));
  }
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes, c10d::AllToAllOptions const& options) override {
    return note_parts(output, input, output_sizes, input_sizes)
        .follow(inner_->alltoall_base(output, input, output_sizes, input_sizes, options));
  }
  Work alltoall(Tensors& outputs, Tensors& inputs, c10d::AllToAllOptions const& options) override {
    return note_lists(inputs).follow(inner_->alltoall(outputs, inputs, options));
  }
  Work send(Tensors& tensors, int to, int tag) override {
    refuse_if_closed(Kind::send);
    recorder_->note(Kind::send, axis_, getSize(), bytes_of(tensors));
    return inner_->send(tensors, to, tag);
  }
  Work recv(Tensors& tensors, int from, int tag) override {
    refuse_if_closed(Kind::recv);
    recorder_->note(Kind::recv, axis_, getSize(), bytes_of(tensors));
    return inner_->recv(tensors, from, tag);
  }
  Work recvAnysource(Tensors& tensors, int tag) override {
    refuse_if_closed(Kind::recv);
    recorder_->note(Kind::recv, axis_, getSize(), bytes_of(tensors));
    return inner_->recvAnysource(tensors, tag);
  }
  Work barrier(c10d::BarrierOptions const& options) override {
    return note(Kind::barrier, Tensors{}).follow(inner_->barrier(options));
  }

 private:
  /// An event that is under way. `note(...).follow(call(...))` notes before it calls: the object of a member call is
  /// evaluated first.
  struct Noted {
    std::shared_ptr<Recorder> const& recorder;
    Recorder::Place place;
    Work follow(Work work) const;
  };

  static std::size_t bytes_of(Tensors const& tensors) {
    std::size_t bytes = 0;
    for (auto const& tensor : tensors) bytes += tensor.nbytes();
    return bytes;
  }
  static char const* op_name(c10d::ReduceOp const& op);

  void refuse_if_closed(Kind kind) const;

  // Refused before it is recorded: what did not happen is no event.
  template <class... Parts>
  Noted note(Kind kind, Tensors const& tensors, Parts const&... how) {
    refuse_if_closed(kind);
    check(kind, tensors, how...);
    return {recorder_, recorder_->note(kind, axis_, getSize(), bytes_of(tensors))};
  }
  // Without a list of the one tensor where nothing is checked.
  template <class... Parts>
  Noted note(Kind kind, at::Tensor const& tensor, Parts const&... how) {
    refuse_if_closed(kind);
    if (check_) check(kind, {tensor}, how...);
    return {recorder_, recorder_->note(kind, axis_, getSize(), tensor.nbytes())};
  }
  // How much a rank sends to which may differ, but must be what the other receives. No sizes: equal ones.
  Noted note_parts(at::Tensor const& output, at::Tensor const& input, std::vector<int64_t> const& output_sizes,
                   std::vector<int64_t> const& input_sizes);
  Noted note_lists(Tensors const& inputs);

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::shared_ptr<Recorder> recorder_;
  std::string axis_;
  std::optional<CallCheck> check_;
  std::string purpose_;
  std::string closed_;
  std::chrono::milliseconds limit_{};
};

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/traced_backend.ipp>
#endif
