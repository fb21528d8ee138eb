// comm/communicator.hpp -- the ranks of one mesh axis, and what they do together.
// In: a c10d backend. Out: typed collectives, blocking or as handles; every error names call, axis and rank.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <weft/comm/backend.hpp>
#include <weft/comm/call_check.hpp>
#include <weft/comm/streams.hpp>
#include <weft/comm/trace.hpp>
#include <weft/comm/traced_backend.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0 {

/// How values of ranks become one. `average` is refused for integers: it would have to round.
enum class ReduceOp { sum, average, min, max, product };

}  // namespace weft

namespace weft::inline v0::comm {

/// An average of fp16 over N ranks is divided in two steps, by about sqrt(N) before the sum and by the rest after it:
/// all of it before would lose small values, all of it after would let the sum overflow.
inline double divisor_before_sum(int ranks) {
  double before = 1;
  while (before * before * 4 <= ranks) before *= 2;
  return before;
}

/// Why a tensor cannot be sent as it lies in memory; null: it can.
inline char const* not_sendable(at::Tensor const& tensor) {
  if (!tensor.defined()) return "the tensor is undefined; pass one with a shape and a dtype";
  if (tensor.layout() != at::kStrided) return "the tensor is not dense; pass .to_dense()";
  if (tensor.is_conj() || tensor.is_neg())
    return "the tensor is conjugated or negated when it is read, not in memory; pass .resolve_conj().resolve_neg()";
  return nullptr;
}

/// A collective under way. It keeps its tensors until the work is done; wait() throws what the backend threw, with the
/// call's name and rank, and throws it again when it is asked again. Dropped without wait(), it waits and swallows the
/// error; dropped by an exception it does not wait, since the other ranks may never come (the backend keeps the tensors
/// it works on).
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  /// wait() waits for `limit` at most; 0: as long as the backend's own timeout.
  Pending(c10::intrusive_ptr<c10d::Work> work, std::string what, std::vector<at::Tensor> tensors,
          std::function<void()> finish = nullptr, std::chrono::milliseconds limit = {})
      : work_(std::move(work)),
        what_(std::move(what)),
        tensors_(std::move(tensors)),
        finish_(std::move(finish)),
        limit_(limit) {}
  Pending(Pending&& other) noexcept
      : work_(std::exchange(other.work_, nullptr)),
        what_(std::move(other.what_)),
        tensors_(std::move(other.tensors_)),
        finish_(std::exchange(other.finish_, nullptr)),
        limit_(other.limit_),
        error_(std::move(other.error_)) {}
  Pending& operator=(Pending&& other) noexcept {
    if (this != &other) {
      abandon();
      work_ = std::exchange(other.work_, nullptr);
      what_ = std::move(other.what_);
      tensors_ = std::move(other.tensors_);
      finish_ = std::exchange(other.finish_, nullptr);
      limit_ = other.limit_;
      error_ = std::move(other.error_);
    }
    return *this;
  }
  ~Pending() { abandon(); }

  void wait() {
    if (!error_.empty()) fail<CommunicationError>(error_);
    if (!work_) return;
    auto const work = std::exchange(work_, nullptr);
    try {
      work->wait(limit_);
      if (auto const finish = std::exchange(finish_, nullptr)) finish();
    } catch (std::exception const& error) {
      finish_ = nullptr;
      tensors_.clear();
      error_ = core::message("weft: ", what_, ": ", first_line(error.what()),
                             limit_.count() > 0 ? core::message(" (limit ", limit_.count(), " ms)") : "");
      fail<CommunicationError>(error_);
    }
    for (auto const& tensor : tensors_) used_on_current_stream(tensor);  // see [Note: memory belongs to a stream]
    tensors_.clear();
  }

  /// LibTorch appends its C++ stack to messages; the reason is the first line.
  static std::string first_line(std::string const& text) { return text.substr(0, text.find('\n')); }

 private:
  void abandon() noexcept {
    if (!work_ || std::uncaught_exceptions() > 0) return;
    try {
      wait();
    } catch (...) {
    }
  }

  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
  std::vector<at::Tensor> tensors_;
  std::function<void()> finish_;
  std::chrono::milliseconds limit_{};
  std::string error_;
};

/// One group of ranks. Calls must be issued in the same order by all of its ranks.
class Communicator {
 public:
  Communicator(c10::intrusive_ptr<c10d::Backend> backend, c10d::ProcessGroup::BackendType type,
               c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<Recorder> recorder, std::string axis,
               at::Device device, std::optional<CallCheck> check = std::nullopt)
      : store_(std::move(store)),
        type_(type),
        device_(device),
        axis_(std::move(axis)),
        recorder_(std::move(recorder)),
        backend_(c10::make_intrusive<TracedBackend>(std::move(backend), recorder_, std::move(check))) {}

  int rank() const { return backend_->getRank(); }
  int size() const { return backend_->getSize(); }
  std::string const& axis() const { return axis_; }
  at::Device device() const { return device_; }
  Recorder& recorder() const { return *recorder_; }
  c10::intrusive_ptr<c10d::Store> const& store() const { return store_; }
  c10::intrusive_ptr<c10d::Backend> backend() const { return backend_; }
  c10::intrusive_ptr<c10d::Backend> const& connection() const {
    return backend_->inner();
  }  // what the policy's factory made

  /// Announces memory that stays and is sent again and again, for backends that gain by it; null where they don't.
  std::shared_ptr<void> register_buffer(at::Tensor const& tensor) const {
    auto* const registers = dynamic_cast<RegistersBuffers*>(connection().get());
    return registers && tensor.nbytes() > 0 ? registers->register_buffer(tensor) : nullptr;
  }

  /// The same group as c10d's front end, for engines that want one (c10d::Reducer).
  c10::intrusive_ptr<c10d::ProcessGroup> const& process_group() {
    if (!group_) {
      group_ = c10::make_intrusive<c10d::ProcessGroup>(store_, rank(), size());
      group_->setBackend(device_.type(), type_, backend());
      group_->setDefaultBackend(type_);
    }
    return group_;
  }

  /// Calls that are issued until the end of the scope fail after `limit`, whatever the group's own timeout. What was
  /// under way then is in no state to go on: leave the group.
  class [[nodiscard]] TimeLimit {
   public:
    TimeLimit(Communicator& ranks, std::chrono::milliseconds limit)
        : ranks_(ranks), before_(std::exchange(ranks.limit_, limit)) {}
    ~TimeLimit() { ranks_.limit_ = before_; }
    TimeLimit(TimeLimit const&) = delete;
    TimeLimit& operator=(TimeLimit const&) = delete;

   private:
    Communicator& ranks_;
    std::chrono::milliseconds before_;
  };

  /// Calls that are issued until the end of the scope are errors: the group's other ranks are known to wait elsewhere.
  class [[nodiscard]] Closed {
   public:
    Closed(Communicator& ranks, std::string why) : ranks_(ranks), before_(ranks.backend_->close(std::move(why))) {}
    ~Closed() { ranks_.backend_->close(std::move(before_)); }
    Closed(Closed const&) = delete;
    Closed& operator=(Closed const&) = delete;

   private:
    Communicator& ranks_;
    std::string before_;
  };

  // Dtypes: whatever is only moved may have any. Reduced are float, double, half, bfloat16, int8, uint8, int32 and
  // int64; bool by max (or), min and product (and); complex by sum and average. Tensors without elements cost no call.
  // What a call writes into may require a gradient: its values change, its history doesn't. `purpose`: what the tensors
  // belong to, for messages ("layers.0 (Block)").

  /// Reduces `tensor` in place, on every rank.
  Pending all_reduce_async(at::Tensor tensor, ReduceOp op = ReduceOp::sum, std::string_view purpose = {}) {
    tensor = target("all_reduce", tensor);
    check_reduction("all_reduce", op, tensor);
    if (is_nothing(Kind::all_reduce, tensor)) return {};
    auto buffer = tensor.contiguous();
    auto const divisors = divisors_of(op, tensor);
    if (divisors.before != 1) buffer.div_(divisors.before);
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_op(op);
    std::vector<at::Tensor> list{reduced_as(buffer)};
    return issue(
        "all_reduce", purpose, [&] { return backend_->allreduce(list, options); }, {buffer, tensor},
        [tensor, buffer, divisors]() mutable {
          divisors.divide(buffer);
          if (!buffer.is_same(tensor)) tensor.copy_(buffer);
        });
  }
  void all_reduce(at::Tensor const& tensor, ReduceOp op = ReduceOp::sum, std::string_view purpose = {}) {
    all_reduce_async(tensor, op, purpose).wait();
  }

  /// Fills `output` (size() times the elements of `input`, in rank order). Both contiguous, of one dtype.
  Pending all_gather_into_async(at::Tensor output, at::Tensor input, std::string_view purpose = {}) {
    output = target("all_gather_into", output);
    require_sendable("all_gather_into", input);
    check_pair("all_gather_into", output, input, input.numel() * size());
    if (is_nothing(Kind::all_gather, output)) return {};
    auto flat_output = moved_as(output), flat_input = moved_as(input);
    return issue("all_gather_into", purpose,
                 [&] { return backend_->_allgather_base(flat_output, flat_input, c10d::AllgatherOptions()); },
                 {output, input});
  }
  void all_gather_into(at::Tensor const& output, at::Tensor const& input) {
    all_gather_into_async(output, input).wait();
  }

  /// Every rank's `tensor`, in rank order. Shapes may differ, in their number of dims as well; dtypes may not. Two
  /// calls, of which the first tells the shapes; where these are equal the second sends no padding.
  std::vector<at::Tensor> all_gather_uneven(at::Tensor const& tensor) {
    constexpr int64_t max_dims = 30;
    require_sendable("all_gather_uneven", tensor);
    if (tensor.dim() > max_dims)
      fail<CommunicationError>("weft: ", what("all_gather_uneven"), ": a tensor of ", tensor.dim(), " dims; at most ",
                               max_dims, " are told to other ranks");
    std::vector<int64_t> mine{static_cast<int64_t>(tensor.scalar_type()), tensor.dim()};
    mine.insert(mine.end(), tensor.sizes().begin(), tensor.sizes().end());
    mine.resize(2 + max_dims);
    auto const header = at::tensor(mine, at::kLong).to(device_);
    auto headers = at::empty({size(), header.numel()}, header.options());
    all_gather_into(headers, header);
    headers = headers.cpu();
    std::vector<at::Tensor> result;
    int64_t most = 0;
    for (int other = 0; other < size(); ++other) {
      auto const* const theirs = headers[other].const_data_ptr<int64_t>();
      if (theirs[0] != mine[0])
        fail<CommunicationError>("weft: ", what("all_gather_uneven"), ": rank ", other, " has ",
                                 static_cast<at::ScalarType>(theirs[0]), ", this rank ", tensor.scalar_type(),
                                 "; convert to one dtype");
      result.push_back(at::empty(at::IntArrayRef(theirs + 2, static_cast<std::size_t>(theirs[1])),
                                 tensor.options().requires_grad(false)));
      most = std::max(most, result.back().numel());
    }
    auto const padded = at::zeros({most}, result.front().options()), all = at::empty({size(), most}, padded.options());
    padded.narrow(0, 0, tensor.numel()).copy_(tensor.detach().reshape({-1}));
    all_gather_into(all, padded);
    for (int other = 0; other < size(); ++other) {
      auto& theirs = result[static_cast<std::size_t>(other)];
      theirs.copy_(all[other].narrow(0, 0, theirs.numel()).view(theirs.sizes()));
    }
    return result;
  }

  /// Leaves in `output` this rank's part of the sum (or average) of all ranks' `input` (size() times its elements). For
  /// an average of fp16 `input` is scaled in place.
  Pending reduce_scatter_into_async(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum,
                                    std::string_view purpose = {}) {
    output = target("reduce_scatter_into", output);
    input = target("reduce_scatter_into", input);
    check_reduction("reduce_scatter_into", op, input);
    check_pair("reduce_scatter_into", output, input, output.numel() * size(), /*gathers=*/false);
    if (is_nothing(Kind::reduce_scatter, input)) return {};
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d_op(op);
    auto const divisors = divisors_of(op, input);
    if (divisors.before != 1) input.div_(divisors.before);
    auto flat_output = reduced_as(output.view({-1})), flat_input = reduced_as(input.view({-1}));
    return issue(
        "reduce_scatter_into", purpose,
        [&] { return backend_->_reduce_scatter_base(flat_output, flat_input, options); }, {output, input},
        [output, divisors]() mutable { divisors.divide(output); });
  }
  void reduce_scatter_into(at::Tensor const& output, at::Tensor const& input, ReduceOp op = ReduceOp::sum) {
    reduce_scatter_into_async(output, input, op).wait();
  }

  /// Makes `tensor` equal to that of rank `source`, in place; same shape and dtype on all ranks.
  Pending broadcast_async(at::Tensor tensor, int source = 0) {
    check_peer("broadcast", "source", source);
    tensor = target("broadcast", tensor);
    if (is_nothing(Kind::broadcast, tensor)) return {};
    auto buffer = tensor.contiguous();
    c10d::BroadcastOptions options;
    options.rootRank = source;
    std::vector<at::Tensor> list{moved_as(buffer)};
    return issue(
        "broadcast", {}, [&] { return backend_->broadcast(list, options); }, {buffer, tensor},
        copy_back(tensor, buffer));
  }
  void broadcast(at::Tensor const& tensor, int source = 0) { broadcast_async(tensor, source).wait(); }

  /// Fills `outputs` with all ranks' `tensor` in rank order on rank `destination`; the others pass none. Same shape and
  /// dtype on all ranks.
  Pending gather_into_async(std::vector<at::Tensor> outputs, at::Tensor const& tensor, int destination = 0) {
    check_peer("gather", "destination", destination);
    require_sendable("gather", tensor);
    if (auto const wanted = rank() == destination ? static_cast<std::size_t>(size()) : 0; outputs.size() != wanted)
      fail<CommunicationError>("weft: ", what("gather"), ": ", outputs.size(), " outputs on rank ", rank(), "; pass ",
                               size(), " on rank ", destination, ", and none elsewhere");
    auto input = tensor.detach().contiguous();
    std::vector<at::Tensor> buffers;
    for (auto& output : outputs) {
      output = target("gather", output);
      if (output.sizes() != tensor.sizes() || output.scalar_type() != tensor.scalar_type())
        fail<CommunicationError>("weft: ", what("gather"), ": an output is ", output.sizes(), " of ",
                                 output.scalar_type(), ", the tensor ", tensor.sizes(), " of ", tensor.scalar_type(),
                                 "; all must be alike");
      input = apart(input, output);
      buffers.push_back(output.contiguous());
    }
    if (is_nothing(Kind::gather, tensor)) return {};
    std::vector<std::vector<at::Tensor>> targets;
    if (!buffers.empty()) targets.emplace_back();
    for (auto const& buffer : buffers) targets.front().push_back(moved_as(buffer));
    c10d::GatherOptions options;
    options.rootRank = destination;
    std::vector<at::Tensor> inputs{moved_as(input)}, kept{input};
    kept.insert(kept.end(), buffers.begin(), buffers.end());
    return issue(
        "gather", {}, [&] { return backend_->gather(targets, inputs, options); }, std::move(kept),
        [outputs = std::move(outputs), buffers] {
          for (std::size_t i = 0; i < outputs.size(); ++i)
            if (!buffers[i].is_same(outputs[i])) outputs[i].copy_(buffers[i]);
        });
  }
  void gather_into(std::vector<at::Tensor> const& outputs, at::Tensor const& tensor, int destination = 0) {
    gather_into_async(outputs, tensor, destination).wait();
  }
  /// The same into new tensors, which it returns; nothing elsewhere.
  std::vector<at::Tensor> gather(at::Tensor const& tensor, int destination = 0) {
    require_sendable("gather", tensor);
    std::vector<at::Tensor> result;
    for (int other = 0; rank() == destination && other < size(); ++other)
      result.push_back(
          at::empty(tensor.sizes(), tensor.options().requires_grad(false).memory_format(at::MemoryFormat::Contiguous)));
    gather_into(result, tensor, destination);
    return result;
  }

  /// Fills `output` with this rank's of the `parts` that rank `source` has, one for each rank; the others pass none.
  Pending scatter_into_async(at::Tensor output, std::vector<at::Tensor> const& parts, int source = 0) {
    check_peer("scatter_into", "source", source);
    output = target("scatter_into", output);
    std::vector<std::vector<at::Tensor>> inputs;
    if (rank() == source) {
      if (static_cast<int>(parts.size()) != size())
        fail<CommunicationError>("weft: ", what("scatter_into"), ": ", parts.size(), " parts for ", size(),
                                 " ranks; pass one for each");
      for (auto const& part : parts) {
        require_sendable("scatter_into", part);
        if (part.sizes() != output.sizes() || part.scalar_type() != output.scalar_type())
          fail<CommunicationError>("weft: ", what("scatter_into"), ": a part is ", part.sizes(), " of ",
                                   part.scalar_type(), ", the output ", output.sizes(), " of ", output.scalar_type(),
                                   "; all must be alike");
      }
      inputs.emplace_back();
      for (auto const& part : parts) inputs.back().push_back(moved_as(apart(part.detach().contiguous(), output)));
    }
    if (is_nothing(Kind::scatter, output)) return {};
    auto buffer = output.contiguous();
    std::vector<at::Tensor> outputs{moved_as(buffer)}, kept{buffer, output};
    if (!inputs.empty()) kept.insert(kept.end(), inputs.front().begin(), inputs.front().end());
    c10d::ScatterOptions options;
    options.rootRank = source;
    return issue(
        "scatter_into", {}, [&] { return backend_->scatter(outputs, inputs, options); }, std::move(kept),
        copy_back(output, buffer));
  }
  void scatter_into(at::Tensor const& output, std::vector<at::Tensor> const& parts, int source = 0) {
    scatter_into_async(output, parts, source).wait();
  }

  /// Sends the r-th equal part of `input` along its first dim to rank r; `output`, of the same size, gets the parts
  /// that ranks have for this one, in rank order. `output` may be `input`.
  Pending all_to_all_into_async(at::Tensor output, at::Tensor const& input) {
    output = target("all_to_all_into", output);
    require_sendable("all_to_all_into", input);
    if (output.sizes() != input.sizes() || input.dim() == 0 || input.size(0) % size() != 0)
      fail<CommunicationError>("weft: ", what("all_to_all_into"), ": input ", input.sizes(), ", output ",
                               output.sizes(), "; both must have one shape, whose first size ", size(),
                               " ranks divide");
    std::vector<int64_t> const equal(static_cast<std::size_t>(size()), input.size(0) / size());
    if (is_nothing(Kind::all_to_all, input)) return {};
    return all_to_all_into_async(std::move(output), input, equal, equal);
  }
  /// The same with parts of `input_sizes[r]` rows for and `output_sizes[r]` rows from rank r.
  Pending all_to_all_into_async(at::Tensor output, at::Tensor const& input, std::vector<int64_t> const& output_sizes,
                                std::vector<int64_t> const& input_sizes) {
    output = target("all_to_all_into", output);
    require_sendable("all_to_all_into", input);
    if (output.scalar_type() != input.scalar_type())
      fail<CommunicationError>("weft: ", what("all_to_all_into"), ": output is ", output.scalar_type(), ", input is ",
                               input.scalar_type(), "; write one dtype");
    auto buffer = output.contiguous();
    auto flat_output = moved_as(buffer), flat_input = moved_as(apart(input.detach().contiguous(), buffer));
    auto output_counts = counts("output", output, output_sizes, flat_output),
         input_counts = counts("input", input, input_sizes, flat_input);
    return issue(
        "all_to_all_into", {},
        [&] {
          return backend_->alltoall_base(flat_output, flat_input, output_counts, input_counts, c10d::AllToAllOptions());
        },
        {buffer, output, flat_input}, copy_back(output, buffer));
  }
  void all_to_all_into(at::Tensor const& output, at::Tensor const& input) {
    all_to_all_into_async(output, input).wait();
  }
  void all_to_all_into(at::Tensor const& output, at::Tensor const& input, std::vector<int64_t> const& output_sizes,
                       std::vector<int64_t> const& input_sizes) {
    all_to_all_into_async(output, input, output_sizes, input_sizes).wait();
  }

  /// One message to another rank, which receives it under the same tag (0 to 2^30 - 1), with the same shape and dtype.
  /// A tensor that is larger than the message it receives is filled from its beginning, and no more: no backend of c10d
  /// tells how much came.
  Pending send_async(at::Tensor const& tensor, int to, int tag = 0) {
    check_message("send", to, tag);
    require_sendable("send", tensor);
    if (tensor.numel() == 0) return {};
    std::vector<at::Tensor> list{moved_as(tensor.detach().contiguous())};
    return issue("send", {}, [&] { return backend_->send(list, to, tag); }, list);
  }
  void send(at::Tensor const& tensor, int to, int tag = 0) { send_async(tensor, to, tag).wait(); }
  Pending receive_into_async(at::Tensor tensor, int from, int tag = 0) {
    check_message("receive_into", from, tag);
    tensor = target("receive_into", tensor);
    if (tensor.numel() == 0) return {};
    auto buffer = tensor.contiguous();
    std::vector<at::Tensor> list{moved_as(buffer)};
    return issue(
        "receive_into", {}, [&] { return backend_->recv(list, from, tag); }, {buffer, tensor},
        copy_back(tensor, buffer));
  }
  void receive_into(at::Tensor const& tensor, int from, int tag = 0) { receive_into_async(tensor, from, tag).wait(); }

  void barrier() {
    issue("barrier", {}, [&] { return backend_->barrier(c10d::BarrierOptions()); }, {}).wait();
  }

 private:
  static c10d::ReduceOp c10d_op(ReduceOp op) {
    switch (op) {
      case ReduceOp::min:
        return c10d::ReduceOp::MIN;
      case ReduceOp::max:
        return c10d::ReduceOp::MAX;
      case ReduceOp::product:
        return c10d::ReduceOp::PRODUCT;
      default:
        return c10d::ReduceOp::SUM;  // Gloo has no average: the sum is divided afterwards
    }
  }

  struct Divisors {
    double before = 1, after = 1;
    at::Tensor
        after_float{};  // the same number: a Scalar becomes a tensor, and another one for its conversion, in every call

    void divide(at::Tensor& sum) const {
      if (after == 1) return;
      if (after_float.defined())
        sum.div_(after_float);
      else
        sum.div_(after);
    }
  };
  Divisors divisors_of(ReduceOp op, at::Tensor const& tensor) const {
    if (op != ReduceOp::average) return {};
    if (tensor.scalar_type() == at::kFloat) return {1, static_cast<double>(size()), size_float_};
    double const before = tensor.scalar_type() == at::kHalf ? divisor_before_sum(size()) : 1.0;
    return {before, size() / before};
  }

  /// A contiguous tensor as one dim, and as bytes if the backend might not know its dtype.
  static at::Tensor moved_as(at::Tensor const& dense) {
    auto const flat = dense.view({-1});
    return is_reducible(flat.scalar_type()) ? flat : flat.view(at::kByte);
  }
  /// The same numbers in a dtype that the backend reduces.
  static at::Tensor reduced_as(at::Tensor const& dense) {
    if (dense.scalar_type() == at::kBool) return dense.view(at::kByte);
    return dense.is_complex() ? at::view_as_real(dense) : dense;
  }
  void check_reduction(char const* call, ReduceOp op, at::Tensor const& tensor) const {
    auto const type = tensor.scalar_type();
    bool const sums = op == ReduceOp::sum || op == ReduceOp::average;
    if (op == ReduceOp::average && !tensor.is_floating_point() && !tensor.is_complex())
      fail<CommunicationError>(
          "weft: ", what(call), ": an average of ", type,
          " would have to round; reduce with ReduceOp::sum and divide, or convert to a floating dtype");
    if (type == at::kBool && sums)
      fail<CommunicationError>(
          "weft: ", what(call),
          ": a sum of Bool; write ReduceOp::max for or, ReduceOp::min for and, or convert to count");
    if (tensor.is_complex() && (!sums || type == at::kComplexHalf))
      fail<CommunicationError>("weft: ", what(call), ": ", type,
                               " has no such reduction; complex float and double are summed and averaged");
    if (!is_reducible(type) && type != at::kBool && !tensor.is_complex())
      fail<CommunicationError>(
          "weft: ", what(call), ": ", type,
          " is moved but not reduced; convert to Float, Double, Half, BFloat16, Char, Byte, Int or Long");
  }

  void require_sendable(char const* call, at::Tensor const& tensor) const {
    if (auto const* const why = not_sendable(tensor)) fail<CommunicationError>("weft: ", what(call), ": ", why);
  }
  /// `tensor` as what a call writes into: the values alone, of which autograd hears nothing.
  at::Tensor target(char const* call, at::Tensor const& tensor) const {
    require_sendable(call, tensor);
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
      fail<CommunicationError>("weft: ", what(call),
                               ": elements of the tensor share memory, as after expand(); pass .contiguous(), or the "
                               "tensor before it was expanded");
    return tensor.requires_grad() ? tensor.detach() : tensor;
  }
  /// An input of which nothing is overwritten while it is sent.
  static at::Tensor apart(at::Tensor const& input, at::Tensor const& output) {
    return at::get_overlap_status(input, output) == at::MemOverlapStatus::No ? input : input.clone();
  }

  /// Nothing to send, on every rank alike: in the checking grade they say so.
  bool is_nothing(Kind kind, at::Tensor const& tensor) {
    if (tensor.numel() > 0) return false;
    backend_->announce({}, limit_);
    backend_->check(kind, {tensor});
    return true;
  }

  std::string what(char const* call, std::string_view purpose = {}) const {
    return std::string(call) + (purpose.empty() ? "" : " for ") + std::string(purpose) + " on axis " + axis_ +
           ", rank " + std::to_string(rank()) + " of " + std::to_string(size());
  }

  template <class Call>
  Pending issue(char const* call, std::string_view purpose, Call const& start, std::vector<at::Tensor> tensors,
                std::function<void()> finish = nullptr) {
    auto name = what(call, purpose) + ", call " + std::to_string(num_calls_++);
    try {
      backend_->announce(purpose, limit_);
      return {start(), std::move(name), std::move(tensors), std::move(finish), limit_};
    } catch (CommunicationError const&) {
      throw;
    } catch (std::exception const& error) {
      fail<CommunicationError>("weft: ", name, ": ", Pending::first_line(error.what()));
    }
  }
  static std::function<void()> copy_back(at::Tensor const& target, at::Tensor const& buffer) {
    if (buffer.is_same(target)) return nullptr;
    return [target, buffer] { target.copy_(buffer); };
  }

  void check_peer(char const* call, char const* role, int peer) const {
    if (peer < 0 || peer >= size())
      fail<CommunicationError>("weft: ", what(call), ": ", role, " ", peer, " is not a rank of the group; write 0 to ",
                               size() - 1);
  }
  void check_message(char const* call, int peer, int tag) const {
    check_peer(call, "peer", peer);
    if (peer == rank())
      fail<CommunicationError>("weft: ", what(call), ": peer ", peer, " is this rank itself; copy the tensor");
    if (tag < 0 || tag >= 1 << 30)
      fail<CommunicationError>("weft: ", what(call), ": tag ", tag, "; write 0 to 2^30 - 1");
  }
  /// How many elements of the flat tensor go to or come from each rank.
  std::vector<int64_t> counts(char const* which, at::Tensor const& tensor, std::vector<int64_t> const& rows,
                              at::Tensor const& flat) const {
    int64_t sum = 0;
    for (auto const count : rows) sum += count;
    if (static_cast<int>(rows.size()) != size() || tensor.dim() == 0 || sum != tensor.size(0) ||
        std::any_of(rows.begin(), rows.end(), [](int64_t count) { return count < 0; }))
      fail<CommunicationError>("weft: ", what("all_to_all_into"), ": parts of ", at::IntArrayRef(rows),
                               " rows do not make the ", which, "'s ", tensor.sizes(), "; give ", size(),
                               " sizes that add up to its first");
    std::vector<int64_t> result;
    for (auto const count : rows) result.push_back(tensor.size(0) == 0 ? 0 : count * (flat.numel() / tensor.size(0)));
    return result;
  }

  void check_pair(char const* call, at::Tensor const& output, at::Tensor const& input, int64_t expected,
                  bool gathers = true) const {
    auto const& whole = gathers ? output : input;
    if (whole.numel() != expected)
      fail<CommunicationError>("weft: ", what(call), ": the whole has ", whole.numel(), " elements, expected ",
                               expected, " (", size(), " ranks times ", expected / size(), ")");
    if (output.scalar_type() != input.scalar_type())
      fail<CommunicationError>("weft: ", what(call), ": output is ", output.scalar_type(), ", input is ",
                               input.scalar_type(), "; write one dtype");
    if (!output.is_contiguous() || !input.is_contiguous())
      fail<CommunicationError>("weft: ", what(call),
                               ": output and input must be contiguous; pass .contiguous() buffers");
  }

  c10::intrusive_ptr<c10d::Store> store_;
  c10d::ProcessGroup::BackendType type_;
  at::Device device_;
  std::string axis_;
  std::shared_ptr<Recorder> recorder_;
  c10::intrusive_ptr<TracedBackend> backend_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::chrono::milliseconds limit_{};
  std::size_t num_calls_ = 0;
  at::Tensor size_float_ = at::scalar_tensor(size(), at::kFloat);  // see Divisors
};

/// The communicator of the policy `Backend` at an endpoint. Collective: all ranks of the group call it.
template <BackendPolicy Backend>
std::shared_ptr<Communicator> connect(Endpoint const& endpoint, std::shared_ptr<Recorder> recorder, std::string axis,
                                      at::Device device) {
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = BackendFactory<Backend>::create(endpoint);
  } catch (std::exception const& error) {
    fail<CommunicationError>("weft: connecting axis ", axis, ", rank ", endpoint.rank, " of ", endpoint.size, ": ",
                             Pending::first_line(error.what()));
  }
  std::optional<CallCheck> check;
  if (endpoint.check_collectives) check.emplace(endpoint.store, endpoint.rank, endpoint.size, axis, endpoint.timeout);
  return std::make_shared<Communicator>(std::move(backend), BackendFactory<Backend>::type, endpoint.store,
                                        std::move(recorder), std::move(axis), device, std::move(check));
}

}  // namespace weft::comm
