// comm/nccl_direct.hpp -- NCCL without c10d in between: communicators split from one another, calls in groups.
// In: NCCL's C interface as a type, and an endpoint. Out: a c10d::Backend.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <weft/comm/backend.hpp>
#include <weft/comm/nccl_connection.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::comm {

/// Calls run one after the other on a stream of their own, each behind what the caller's stream had been told when it
/// was issued.
template <class Api>
class NcclDirectBackend final : public c10d::Backend, public RegistersBuffers {
 public:
  using Handle = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Connection = nccl::Connection<Api>;
  using Part = nccl::Part;

  NcclDirectBackend(Endpoint const& endpoint, std::shared_ptr<Connection> connection)
      : Backend(endpoint.rank, endpoint.size),
        device_(endpoint.device),
        connection_(std::move(connection)),
        stream_(endpoint.device) {}
  ~NcclDirectBackend() override { connection_->close(); }

  std::string const getBackendName() const override { return "nccl direct"; }
  Connection& connection() { return *connection_; }
  std::shared_ptr<void> register_buffer(at::Tensor const& tensor) override {
    return Connection::register_buffer(connection_, tensor);
  }

  Handle broadcast(Tensors& tensors, c10d::BroadcastOptions const& options) override {
    return issue("broadcast", tensors, tensors, [&](auto& group) {
      for (auto const& tensor : tensors)
        group.broadcast(Part(tensor), tensor.data_ptr(), static_cast<int>(options.rootRank));
    });
  }
  Handle allreduce(Tensors& tensors, c10d::AllreduceOptions const& options) override {
    return reduce_all("all_reduce", tensors, options.reduceOp);
  }
  Handle allreduce_coalesced(Tensors& tensors, c10d::AllreduceCoalescedOptions const& options) override {
    return reduce_all("all_reduce", tensors, options.reduceOp);
  }
  Handle reduce(Tensors& tensors, c10d::ReduceOptions const& options) override {
    return issue("reduce", tensors, tensors, [&, op = op_for(options.reduceOp, tensors)](auto& group) {
      for (auto const& tensor : tensors)
        group.reduce(Part(tensor), tensor.data_ptr(), op, static_cast<int>(options.rootRank));
    });
  }
  // The names of torch before 2.15; from then on the newer *_single names arrive here through c10d's own forwarding.
  Handle _allgather_base(at::Tensor& output, at::Tensor& input, c10d::AllgatherOptions const&) override {
    return issue("all_gather", {output}, {input, output},
                 [&](auto& group) { group.all_gather(Part(input), Part(output).data); });
  }
  Handle _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                              c10d::ReduceScatterOptions const& options) override {
    return issue("reduce_scatter", {output}, {input, output}, [&, op = op_for(options.reduceOp, {input})](auto& group) {
      group.reduce_scatter(Part(input).data, Part(output), op);
    });
  }
  // Lists of tensors, which may differ in size from rank to rank: one call for each rank's, in one group.
  Handle allgather(std::vector<Tensors>& outputs, Tensors& inputs, c10d::AllgatherOptions const&) override {
    return issue("all_gather", flattened(outputs), flattened(outputs, inputs), [&](auto& group) {
      for (std::size_t i = 0; i < inputs.size(); ++i)
        for (int root = 0; root < getSize(); ++root) {
          auto const& output = outputs[i][static_cast<std::size_t>(root)];
          group.broadcast(Part(root == getRank() ? inputs[i] : output), Part(output).data, root);
        }
    });
  }
  Handle reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                        c10d::ReduceScatterOptions const& options) override {
    return issue("reduce_scatter", outputs, flattened(inputs, outputs),
                 [&, op = op_for(options.reduceOp, outputs)](auto& group) {
                   for (std::size_t i = 0; i < outputs.size(); ++i)
                     for (int root = 0; root < getSize(); ++root)
                       group.reduce(Part(inputs[i][static_cast<std::size_t>(root)]), Part(outputs[i]).data, op, root);
                 });
  }
  // NCCL has no call of its own for these: messages in one group, to this rank itself as well.
  Handle gather(std::vector<Tensors>& outputs, Tensors& inputs, c10d::GatherOptions const& options) override {
    return issue("gather", flattened(outputs), flattened(outputs, inputs), [&](auto& group) {
      group.send(Part(inputs.front()), static_cast<int>(options.rootRank));
      if (!outputs.empty()) group.receive_from_each(outputs.front());
    });
  }
  Handle scatter(Tensors& outputs, std::vector<Tensors>& inputs, c10d::ScatterOptions const& options) override {
    return issue("scatter", outputs, flattened(inputs, outputs), [&](auto& group) {
      if (!inputs.empty()) group.send_to_each(inputs.front());
      group.receive(Part(outputs.front()), static_cast<int>(options.rootRank));
    });
  }
  Handle alltoall(Tensors& outputs, Tensors& inputs, c10d::AllToAllOptions const&) override {
    return issue("all_to_all", outputs, flattened({inputs}, outputs), [&](auto& group) {
      group.send_to_each(inputs);
      group.receive_from_each(outputs);
    });
  }
  Handle alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                       std::vector<std::int64_t>& input_sizes, c10d::AllToAllOptions const&) override {
    return issue("all_to_all", {output}, {input, output}, [&](auto& group) {
      group.send_to_each(parts(input, input_sizes));
      group.receive_from_each(parts(output, output_sizes));
    });
  }
  Handle send(Tensors& tensors, int to, int tag) override {
    nccl::refuse_tag(tag);
    return issue("send", tensors, tensors, [&](auto& group) { group.send(Part(tensors.front()), to); });
  }
  Handle recv(Tensors& tensors, int from, int tag) override {
    nccl::refuse_tag(tag);
    return issue("receive", tensors, tensors, [&](auto& group) { group.receive(Part(tensors.front()), from); });
  }
  Handle barrier(c10d::BarrierOptions const&) override {
    auto const token = at::zeros({1}, at::TensorOptions().device(device_));
    return issue(
        "barrier", {}, {token}, [&](auto& group) { group.all_reduce(Part(token), nccl::Op::sum); },
        /*holds_host=*/true);
  }

 private:
  /// What is told to NCCL between ncclGroupStart and ncclGroupEnd; after the first error nothing more.
  class Group {
   public:
    Group(typename Connection::Comm comm, typename Api::Stream& stream)
        : comm_(comm), stream_(stream), result_(Api::group_start()) {}
    nccl::Result end() {
      auto const ended = Api::group_end();
      return result_ == nccl::Result::success ? ended : result_;
    }

    void all_reduce(Part const& part, nccl::Op op) {
      notify(&Api::all_reduce, part.data, part.data, part.count, part.type, op);
    }
    void reduce(Part const& input, void* output, nccl::Op op, int root) {
      notify(&Api::reduce, input.data, output, input.count, input.type, op, root);
    }
    void broadcast(Part const& input, void* output, int root) {
      notify(&Api::broadcast, input.data, output, input.count, input.type, root);
    }
    void all_gather(Part const& input, void* output) {
      notify(&Api::all_gather, input.data, output, input.count, input.type);
    }
    void reduce_scatter(void const* input, Part const& output, nccl::Op op) {
      notify(&Api::reduce_scatter, input, output.data, output.count, output.type, op);
    }
    void send(Part const& part, int to) { notify(&Api::send, part.data, part.count, part.type, to); }
    void receive(Part const& part, int from) { notify(&Api::receive, part.data, part.count, part.type, from); }
    void send_to_each(Tensors const& tensors) {
      for (std::size_t to = 0; to < tensors.size(); ++to)
        if (tensors[to].numel() > 0) send(Part(tensors[to]), static_cast<int>(to));
    }
    void receive_from_each(Tensors const& tensors) {
      for (std::size_t from = 0; from < tensors.size(); ++from)
        if (tensors[from].numel() > 0) receive(Part(tensors[from]), static_cast<int>(from));
    }

   private:
    template <class Function, class... Arguments>
    void notify(Function function, Arguments... arguments) {
      if (result_ == nccl::Result::success) result_ = function(arguments..., comm_, stream_);
    }
    typename Connection::Comm comm_;
    typename Api::Stream& stream_;
    nccl::Result result_;
  };

  class Work final : public c10d::Work {
   public:
    Work(std::shared_ptr<Connection> connection, std::shared_ptr<typename Connection::Call> call,
         typename Api::Stream stream, at::Device device, Tensors outputs)
        : connection_(std::move(connection)),
          call_(std::move(call)),
          stream_(std::move(stream)),
          device_(device),
          outputs_(std::move(outputs)) {}
    bool wait(std::chrono::milliseconds limit) override {
      connection_->wait(*call_, limit);
      return true;
    }
    void synchronize() override { wait(kNoTimeout); }
    bool isCompleted() override { return connection_->failed() || call_->end.reached(); }
    bool isSuccess() const override { return !connection_->failed(); }
    Tensors result() override { return outputs_; }
    /// Done at once, as far as the host is concerned: whoever waits for it makes a stream wait. c10d::Reducer asks for
    /// it.
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
      auto future = c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()),
          device_.is_cpu() ? std::vector<c10::Device>() : std::vector{device_});
      stream_.complete(*future, c10::IValue(outputs_), call_->end);
      connection_->require_alive_now();
      return future;
    }

   private:
    std::shared_ptr<Connection> connection_;
    std::shared_ptr<typename Connection::Call> call_;
    typename Api::Stream stream_;
    at::Device device_;
    Tensors outputs_;
  };

  /// All is refused before NCCL hears of any of it: half a group would be another call than the other ranks'.
  template <class Tell>
  Handle issue(char const* name, Tensors outputs, Tensors tensors, Tell const& notify, bool holds_host = false) {
    for (auto const& tensor : tensors) {
      if (tensor.device() != device_)
        fail<Error>("NCCL: ", name, ": a tensor is on ", tensor.device(), ", this rank's device is ", device_,
                    "; move it there first");
      if (!tensor.is_contiguous())
        fail<Error>("NCCL: ", name, ": a tensor of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
                    " is not contiguous; pass .contiguous() buffers");
    }
    auto what = connection_->next_call(name);
    stream_.follow_caller();
    connection_->run(what, [&](typename Connection::Comm comm) {
      Group group(comm, stream_);
      notify(group);
      return group.end();
    });
    auto call = connection_->watch({stream_.mark(), std::move(what), {}, holds_host, std::move(tensors)});
    return c10::make_intrusive<Work>(connection_, std::move(call), stream_, device_, std::move(outputs));
  }
  Handle reduce_all(char const* name, Tensors const& tensors, c10d::ReduceOp const& op) {
    return issue(name, tensors, tensors, [&, op = op_for(op, tensors)](auto& group) {
      for (auto const& tensor : tensors) group.all_reduce(Part(tensor), op);
    });
  }

  static nccl::Op op_for(c10d::ReduceOp const& op, Tensors const& tensors) {
    for (auto const& tensor : tensors)
      if (!nccl::type_of(tensor.scalar_type()))
        fail<Error>("NCCL does not reduce ", tensor.scalar_type(),
                    "; convert to Float, Double, Half, BFloat16, Char, Byte, Int or Long");
    return nccl::op_of(op);
  }
  /// By rows; no sizes mean equal ones.
  Tensors parts(at::Tensor const& tensor, std::vector<std::int64_t> const& sizes) const {
    return sizes.empty() ? tensor.chunk(getSize()) : tensor.split_with_sizes(sizes);
  }

  at::Device device_;
  std::shared_ptr<Connection> connection_;
  typename Api::Stream stream_;
};

/// Collective. Splits the parent's communicator where there is one, else meets through the store.
template <class Api>
c10::intrusive_ptr<c10d::Backend> connect_nccl(Endpoint const& endpoint) {
  auto connection = std::make_shared<nccl::Connection<Api>>(endpoint);
  if (auto* const parent = dynamic_cast<NcclDirectBackend<Api>*>(endpoint.parent.get())) {
    connection->split_from(parent->connection(), endpoint.color);
  } else {
    nccl::Id id{};
    if (endpoint.rank == 0) {
      if (auto const result = Api::get_unique_id(id); result != nccl::Result::success)
        fail<Error>("NCCL: making an id for the group: ", Api::describe(result, {}));
      auto const* const bytes = reinterpret_cast<std::uint8_t const*>(id.bytes);
      endpoint.store->set("weft/nccl", std::vector<std::uint8_t>(bytes, bytes + sizeof id.bytes));
    } else {
      endpoint.store->wait({"weft/nccl"}, endpoint.timeout);
      auto const bytes = endpoint.store->get("weft/nccl");
      std::memcpy(id.bytes, bytes.data(), std::min(bytes.size(), sizeof id.bytes));
    }
    connection->connect(id);
  }
  return c10::make_intrusive<NcclDirectBackend<Api>>(endpoint, std::move(connection));
}

}  // namespace weft::comm
