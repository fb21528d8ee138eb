// comm/communicator.hpp -- the ranks of one mesh axis, and what they do together.
// In: a c10d backend. Out: typed collectives, blocking or as handles; every error names call, axis and rank.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <weft/comm/backend.hpp>
#include <weft/comm/call_check.hpp>
#include <weft/comm/trace.hpp>
#include <weft/comm/traced_backend.hpp>
#include <weft/core/error.hpp>

namespace weft {

/// How values of ranks become one. `average` is refused for integers: it would have to round.
enum class ReduceOp { sum, average, min, max, product };

}  // namespace weft

namespace weft::comm {

/// An average of fp16 over N ranks is divided in two steps, by about sqrt(N) before the sum and by the rest after it: all of it
/// before would lose small values, all of it after would let the sum overflow.
inline double divisor_before_sum(int ranks) {
  double before = 1;
  while (before * before * 4 <= ranks) before *= 2;
  return before;
}

/// A collective under way. It keeps its tensors until the work is done; wait() throws what the backend threw,
/// with the call's name and rank. Dropped without wait(), it waits and swallows the error; dropped by an exception it does
/// not wait, since the other ranks may never come (the backend keeps the tensors it works on).
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  Pending(c10::intrusive_ptr<c10d::Work> work, std::string what, std::vector<at::Tensor> tensors,
          std::function<void()> finish = nullptr)
      : work_(std::move(work)), what_(std::move(what)), tensors_(std::move(tensors)), finish_(std::move(finish)) {}
  Pending(Pending&& other) noexcept
      : work_(std::exchange(other.work_, nullptr)), what_(std::move(other.what_)), tensors_(std::move(other.tensors_)),
        finish_(std::exchange(other.finish_, nullptr)) {}
  Pending& operator=(Pending&& other) noexcept {
    if (this != &other) {
      abandon();
      work_ = std::exchange(other.work_, nullptr);
      what_ = std::move(other.what_);
      tensors_ = std::move(other.tensors_);
      finish_ = std::exchange(other.finish_, nullptr);
    }
    return *this;
  }
  ~Pending() { abandon(); }

  void wait() {
    if (!work_) return;
    auto const work = std::exchange(work_, nullptr);
    try {
      work->wait();
    } catch (std::exception const& error) {
      tensors_.clear();
      fail<CommunicationError>("weft: ", what_, ": ", first_line(error.what()));
    }
    if (auto const finish = std::exchange(finish_, nullptr)) finish();
    tensors_.clear();
  }

  /// LibTorch appends its C++ stack to messages; the reason is the first line.
  static std::string first_line(std::string const& text) { return text.substr(0, text.find('\n')); }

 private:
  void abandon() noexcept {
    if (std::uncaught_exceptions() > 0) return;
    try {
      wait();
    } catch (...) {
    }
  }

  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
  std::vector<at::Tensor> tensors_;
  std::function<void()> finish_;
};

/// One group of ranks. Calls must be issued in the same order by all of its ranks.
class Communicator {
 public:
  Communicator(c10::intrusive_ptr<c10d::Backend> backend, c10d::ProcessGroup::BackendType type,
               c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<Recorder> recorder, std::string axis, at::Device device,
               std::optional<CallCheck> check = std::nullopt)
      : store_(std::move(store)), type_(type), device_(device), axis_(std::move(axis)), recorder_(std::move(recorder)),
        backend_(c10::make_intrusive<TracedBackend>(std::move(backend), recorder_, std::move(check))) {}

  int rank() const { return backend_->getRank(); }
  int size() const { return backend_->getSize(); }
  std::string const& axis() const { return axis_; }
  at::Device device() const { return device_; }
  Recorder& recorder() const { return *recorder_; }
  c10::intrusive_ptr<c10d::Store> const& store() const { return store_; }
  c10::intrusive_ptr<c10d::Backend> backend() const { return backend_; }

  /// The same group as c10d's front end, for engines that want one (c10d::Reducer).
  c10::intrusive_ptr<c10d::ProcessGroup> const& process_group() {
    if (!group_) {
      group_ = c10::make_intrusive<c10d::ProcessGroup>(store_, rank(), size());
      group_->setBackend(device_.type(), type_, backend());
      group_->setDefaultBackend(type_);
    }
    return group_;
  }

  // `purpose`: what the tensors belong to, for messages ("layers.0 (Block)").

  /// Reduces `tensor` in place, on every rank.
  Pending all_reduce_async(at::Tensor tensor, ReduceOp op = ReduceOp::sum, std::string_view purpose = {}) {
    refuse_integer_average(op, tensor);
    auto buffer = tensor.contiguous();
    auto const divisors = divisors_of(op, tensor);
    if (divisors.before != 1) buffer.div_(divisors.before);
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_op(op);
    std::vector<at::Tensor> list{buffer};
    auto work = issue("all_reduce", purpose, [&] { return backend_->allreduce(list, options); });
    return {std::move(work), what("all_reduce", purpose), {buffer, tensor}, [tensor, buffer, divisor = divisors.after]() mutable {
              if (divisor != 1) buffer.div_(divisor);
              if (!buffer.is_same(tensor)) tensor.copy_(buffer);
            }};
  }
  void all_reduce(at::Tensor const& tensor, ReduceOp op = ReduceOp::sum) { all_reduce_async(tensor, op).wait(); }

  /// Fills `output` (size() times the elements of `input`, in rank order). Both contiguous, of one dtype.
  Pending all_gather_into_async(at::Tensor output, at::Tensor input, std::string_view purpose = {}) {
    check_pair("all_gather_into", output, input, input.numel() * size());
    auto flat_output = output.view({-1}), flat_input = input.view({-1});  // Gloo compares shapes; here only the order counts
    auto work = issue("all_gather_into", purpose, [&] { return backend_->_allgather_base(flat_output, flat_input, c10d::AllgatherOptions()); });
    return {std::move(work), what("all_gather_into", purpose), {output, input}};
  }
  void all_gather_into(at::Tensor const& output, at::Tensor const& input) { all_gather_into_async(output, input).wait(); }

  /// Leaves in `output` this rank's part of the sum (or average) of all ranks' `input` (size() times its elements). For an
  /// average of fp16 `input` is scaled in place.
  Pending reduce_scatter_into_async(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum, std::string_view purpose = {}) {
    refuse_integer_average(op, input);
    check_pair("reduce_scatter_into", output, input, output.numel() * size(), /*gathers=*/false);
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d_op(op);
    auto const divisors = divisors_of(op, input);
    if (divisors.before != 1) input.div_(divisors.before);
    auto flat_output = output.view({-1}), flat_input = input.view({-1});
    auto work = issue("reduce_scatter_into", purpose, [&] { return backend_->_reduce_scatter_base(flat_output, flat_input, options); });
    return {std::move(work), what("reduce_scatter_into", purpose), {output, input}, [output, divisor = divisors.after]() mutable {
              if (divisor != 1) output.div_(divisor);
            }};
  }
  void reduce_scatter_into(at::Tensor const& output, at::Tensor const& input, ReduceOp op = ReduceOp::sum) {
    reduce_scatter_into_async(output, input, op).wait();
  }

  /// Makes `tensor` equal to that of rank `source`, in place; same shape and dtype on all ranks.
  Pending broadcast_async(at::Tensor tensor, int source = 0) {
    if (source < 0 || source >= size())
      fail<CommunicationError>("weft: ", what("broadcast"), ": source ", source, " is not a rank of the group; write 0 to ", size() - 1);
    auto buffer = tensor.contiguous();
    c10d::BroadcastOptions options;
    options.rootRank = source;
    std::vector<at::Tensor> list{buffer};
    auto work = issue("broadcast", {}, [&] { return backend_->broadcast(list, options); });
    return {std::move(work), what("broadcast"), {buffer, tensor}, [tensor, buffer]() mutable {
              if (!buffer.is_same(tensor)) tensor.copy_(buffer);
            }};
  }
  void broadcast(at::Tensor const& tensor, int source = 0) { broadcast_async(tensor, source).wait(); }

  void barrier() {
    auto work = issue("barrier", {}, [&] { return backend_->barrier(c10d::BarrierOptions()); });
    Pending(std::move(work), what("barrier"), {}).wait();
  }

 private:
  static c10d::ReduceOp c10d_op(ReduceOp op) {
    switch (op) {
      case ReduceOp::min: return c10d::ReduceOp::MIN;
      case ReduceOp::max: return c10d::ReduceOp::MAX;
      case ReduceOp::product: return c10d::ReduceOp::PRODUCT;
      default: return c10d::ReduceOp::SUM;  // Gloo has no average: the sum is divided afterwards
    }
  }

  struct Divisors {
    double before = 1, after = 1;
  };
  Divisors divisors_of(ReduceOp op, at::Tensor const& tensor) const {
    if (op != ReduceOp::average) return {};
    double const before = tensor.scalar_type() == at::kHalf ? divisor_before_sum(size()) : 1.0;
    return {before, size() / before};
  }

  std::string what(char const* call, std::string_view purpose = {}) const {
    return std::string(call) + (purpose.empty() ? "" : " for ") + std::string(purpose) + " on axis " + axis_ + ", rank " + std::to_string(rank()) + " of " + std::to_string(size());
  }

  template <class Call>
  c10::intrusive_ptr<c10d::Work> issue(char const* call, std::string_view purpose, Call const& start) {
    try {
      backend_->announce(purpose);
      return start();
    } catch (CommunicationError const&) {
      throw;
    } catch (std::exception const& error) {
      fail<CommunicationError>("weft: ", what(call, purpose), ": ", Pending::first_line(error.what()));
    }
  }

  void refuse_integer_average(ReduceOp op, at::Tensor const& tensor) const {
    if (op == ReduceOp::average && !tensor.is_floating_point() && !tensor.is_complex())
      fail<CommunicationError>("weft: ", what("all_reduce"), ": an average of ", tensor.scalar_type(),
                               " would have to round; reduce with ReduceOp::sum and divide, or convert to a floating dtype");
  }

  void check_pair(char const* call, at::Tensor const& output, at::Tensor const& input, int64_t expected, bool gathers = true) const {
    auto const& whole = gathers ? output : input;
    if (whole.numel() != expected)
      fail<CommunicationError>("weft: ", what(call), ": the whole has ", whole.numel(), " elements, expected ", expected,
                               " (", size(), " ranks times ", expected / size(), ")");
    if (output.scalar_type() != input.scalar_type())
      fail<CommunicationError>("weft: ", what(call), ": output is ", output.scalar_type(), ", input is ", input.scalar_type(), "; write one dtype");
    if (!output.is_contiguous() || !input.is_contiguous())
      fail<CommunicationError>("weft: ", what(call), ": output and input must be contiguous; pass .contiguous() buffers");
  }

  c10::intrusive_ptr<c10d::Store> store_;
  c10d::ProcessGroup::BackendType type_;
  at::Device device_;
  std::string axis_;
  std::shared_ptr<Recorder> recorder_;
  c10::intrusive_ptr<TracedBackend> backend_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

/// The communicator of the policy `Backend` at an endpoint. Collective: all ranks of the group call it.
template <BackendPolicy Backend>
std::shared_ptr<Communicator> connect(Endpoint const& endpoint, std::shared_ptr<Recorder> recorder, std::string axis, at::Device device) {
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = BackendFactory<Backend>::create(endpoint);
  } catch (std::exception const& error) {
    fail<CommunicationError>("weft: connecting axis ", axis, ", rank ", endpoint.rank, " of ", endpoint.size, ": ",
                             Pending::first_line(error.what()));
  }
  std::optional<CallCheck> check;
  if (endpoint.check_collectives) check.emplace(endpoint.store, endpoint.rank, endpoint.size, axis, endpoint.timeout);
  return std::make_shared<Communicator>(std::move(backend), BackendFactory<Backend>::type, endpoint.store, std::move(recorder),
                                        std::move(axis), device, std::move(check));
}

}  // namespace weft::comm
