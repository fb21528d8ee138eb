// comm/communicator.hpp -- the ranks of one mesh axis, and what they do together.
// In: a c10d backend. Out: typed collectives, blocking or as handles; every error names call, axis and rank.
#pragma once

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

#include <ATen/MemoryOverlap.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <weft/comm/backend.hpp>
#include <weft/comm/call_check.hpp>
#include <weft/comm/pending.hpp>
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
char const* not_sendable(at::Tensor const& tensor);

/// One group of ranks. Calls must be issued in the same order by all of its ranks.
class Communicator {
 public:
  Communicator(c10::intrusive_ptr<c10d::Backend> backend, c10d::ProcessGroup::BackendType type,
               c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<Recorder> recorder, std::string axis,
               at::Device device, std::optional<CallCheck> check = std::nullopt);

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
  std::shared_ptr<void> register_buffer(at::Tensor const& tensor) const;

  /// The same group as c10d's front end, for engines that want one (c10d::Reducer).
  c10::intrusive_ptr<c10d::ProcessGroup> const& process_group();

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

  /// Calls on it are errors that say `why`, from now on, until it is empty. Returns what was set before. Local.
  std::string close(std::string why) { return backend_->close(std::move(why)); }
  /// Calls that are issued until the end of the scope are errors: the group's other ranks are known to wait elsewhere.
  class [[nodiscard]] Closed {
   public:
    Closed(Communicator& ranks, std::string why) : ranks_(ranks), before_(ranks.close(std::move(why))) {}
    ~Closed() { ranks_.close(std::move(before_)); }
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
  Pending all_reduce_async(at::Tensor tensor, ReduceOp op = ReduceOp::sum, std::string_view purpose = {});
  void all_reduce(at::Tensor const& tensor, ReduceOp op = ReduceOp::sum, std::string_view purpose = {}) {
    all_reduce_async(tensor, op, purpose).wait();
  }

  /// Fills `output` (size() times the elements of `input`, in rank order). Both contiguous, of one dtype.
  Pending all_gather_into_async(at::Tensor output, at::Tensor input, std::string_view purpose = {});
  void all_gather_into(at::Tensor const& output, at::Tensor const& input) {
    all_gather_into_async(output, input).wait();
  }

  /// Every rank's `tensor`, in rank order. Shapes may differ, in their number of dims as well; dtypes may not. Two
  /// calls, of which the first tells the shapes; where these are equal the second sends no padding.
  std::vector<at::Tensor> all_gather_uneven(at::Tensor const& tensor);

  /// Leaves in `output` this rank's part of the sum (or average) of all ranks' `input` (size() times its elements). For
  /// an average of fp16 `input` is scaled in place.
  Pending reduce_scatter_into_async(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum,
                                    std::string_view purpose = {});
  void reduce_scatter_into(at::Tensor const& output, at::Tensor const& input, ReduceOp op = ReduceOp::sum) {
    reduce_scatter_into_async(output, input, op).wait();
  }

  /// Makes `tensor` equal to that of rank `source`, in place; same shape and dtype on all ranks.
  Pending broadcast_async(at::Tensor tensor, int source = 0);
  void broadcast(at::Tensor const& tensor, int source = 0) { broadcast_async(tensor, source).wait(); }

  /// Fills `outputs` with all ranks' `tensor` in rank order on rank `destination`; the others pass none. Same shape and
  /// dtype on all ranks.
  Pending gather_into_async(std::vector<at::Tensor> outputs, at::Tensor const& tensor, int destination = 0);
  void gather_into(std::vector<at::Tensor> const& outputs, at::Tensor const& tensor, int destination = 0) {
    gather_into_async(outputs, tensor, destination).wait();
  }
  /// The same into new tensors, which it returns; nothing elsewhere.
  std::vector<at::Tensor> gather(at::Tensor const& tensor, int destination = 0);

  /// Fills `output` with this rank's of the `parts` that rank `source` has, one for each rank; the others pass none.
  Pending scatter_into_async(at::Tensor output, std::vector<at::Tensor> const& parts, int source = 0);
  void scatter_into(at::Tensor const& output, std::vector<at::Tensor> const& parts, int source = 0) {
    scatter_into_async(output, parts, source).wait();
  }

  /// Sends the r-th equal part of `input` along its first dim to rank r; `output`, of the same size, gets the parts
  /// that ranks have for this one, in rank order. `output` may be `input`.
  Pending all_to_all_into_async(at::Tensor output, at::Tensor const& input);
  /// The same with parts of `input_sizes[r]` rows for and `output_sizes[r]` rows from rank r.
  Pending all_to_all_into_async(at::Tensor output, at::Tensor const& input, std::vector<int64_t> const& output_sizes,
                                std::vector<int64_t> const& input_sizes);
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
  Pending send_async(at::Tensor const& tensor, int to, int tag = 0);
  void send(at::Tensor const& tensor, int to, int tag = 0) { send_async(tensor, to, tag).wait(); }
  Pending receive_into_async(at::Tensor tensor, int from, int tag = 0);
  void receive_into(at::Tensor const& tensor, int from, int tag = 0) { receive_into_async(tensor, from, tag).wait(); }

  void barrier() {
    issue("barrier", {}, [&] { return backend_->barrier(c10d::BarrierOptions()); }, {}).wait();
  }

 private:
  static c10d::ReduceOp c10d_op(ReduceOp op);

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
  Divisors divisors_of(ReduceOp op, at::Tensor const& tensor) const;

  /// A contiguous tensor as one dim, and as bytes if the backend might not know its dtype.
  static at::Tensor moved_as(at::Tensor const& dense) {
    auto const flat = dense.view({-1});
    return is_reducible(flat.scalar_type()) ? flat : flat.view(at::kByte);
  }
  /// The same numbers in a dtype that the backend reduces.
  static at::Tensor reduced_as(at::Tensor const& dense);
  void check_reduction(char const* call, ReduceOp op, at::Tensor const& tensor) const;

  void require_sendable(char const* call, at::Tensor const& tensor) const {
    if (auto const* const why = not_sendable(tensor)) fail<CommunicationError>("weft: ", what(call), ": ", why);
  }
  /// `tensor` as what a call writes into: the values alone, of which autograd hears nothing.
  at::Tensor target(char const* call, at::Tensor const& tensor) const;
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

  std::string what(char const* call, std::string_view purpose = {}) const;

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

  void check_peer(char const* call, char const* role, int peer) const;
  void check_message(char const* call, int peer, int tag) const;
  /// How many elements of the flat tensor go to or come from each rank.
  std::vector<int64_t> counts(char const* which, at::Tensor const& tensor, std::vector<int64_t> const& rows,
                              at::Tensor const& flat) const;

  void check_pair(char const* call, at::Tensor const& output, at::Tensor const& input, int64_t expected,
                  bool gathers = true) const;

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

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/communicator.ipp>
#endif
