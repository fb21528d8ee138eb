// comm/nccl_connection.hpp -- one of NCCL's communicators, what is under way on it, and what became of it.
// In: NCCL's C interface as a type (comm/nccl_library.hpp; the tests have a double), and calls. Out: calls that were
// taken, or the first reason why not.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <weft/comm/backend.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::comm::nccl {

// NCCL's own numbers: comm/nccl_library.hpp holds them against nccl.h.
enum class Result : int {
  success,
  unhandled_cuda_error,
  system_error,
  internal_error,
  invalid_argument,
  invalid_usage,
  remote_error,
  in_progress
};
enum class Type : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  int64 = 4,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9
};
enum class Op : int { sum, product, max, min, average };
struct Id {
  char bytes[128];
};

inline std::optional<Type> type_of(at::ScalarType type) {
  switch (type) {
    case at::kChar:
      return Type::int8;
    case at::kByte:
      return Type::uint8;
    case at::kInt:
      return Type::int32;
    case at::kLong:
      return Type::int64;
    case at::kHalf:
      return Type::float16;
    case at::kFloat:
      return Type::float32;
    case at::kDouble:
      return Type::float64;
    case at::kBFloat16:
      return Type::bfloat16;
    default:
      return {};
  }
}
inline Op op_of(c10d::ReduceOp const& op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return Op::sum;
    case c10d::ReduceOp::AVG:
      return Op::average;
    case c10d::ReduceOp::PRODUCT:
      return Op::product;
    case c10d::ReduceOp::MIN:
      return Op::min;
    case c10d::ReduceOp::MAX:
      return Op::max;
    default:
      fail<Error>("NCCL reduces by sum, average, product, minimum and maximum, and by nothing else");
  }
}
inline void refuse_tag(int tag) {
  if (tag != 0)
    fail<Error>("NCCL matches messages between two ranks by their order, and has no tags, but tag ", tag,
                " was given; write tag 0 and receive in the order of sending");
}

/// What is sent or received: dtypes that NCCL has no name for travel as bytes.
struct Part {
  void* data;
  std::size_t count;
  Type type;

  explicit Part(at::Tensor const& tensor)
      : data(tensor.data_ptr()),
        count(type_of(tensor.scalar_type()) ? static_cast<std::size_t>(tensor.numel()) : tensor.nbytes()),
        type(type_of(tensor.scalar_type()).value_or(Type::uint8)) {}
};

/// One communicator, what is under way on it, and what became of it. NCCL takes one thread at a time: calls go through
/// run().
///
/// [Note: NCCL's errors are polled] The communicator is a non-blocking one: a call is only taken when its state says
/// so, and what goes wrong later (another rank is gone, a network error) is seen by asking for the state. So a thread
/// asks while calls are under way. An error, or a call past its time limit, ends the communicator: kernels that wait
/// for other ranks leave the device, so nothing hangs, and whoever waits or calls next is told the first reason. A
/// communicator that was ended stays so: the job has to start again.
template <class Api>
class Connection {
 public:
  using Comm = typename Api::Comm;
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;

  /// A call that NCCL has taken. It keeps its tensors until it is done, or waited for (see [Note: memory belongs to a
  /// stream]).
  struct Call {
    typename Api::Stream::Mark end;
    std::string what;
    Clock::time_point limit;
    bool holds_host = false;  // a barrier means the program, not only its device
    std::vector<at::Tensor> tensors;
  };

  explicit Connection(Endpoint const& endpoint)
      : rank_(endpoint.rank), size_(endpoint.size), timeout_(endpoint.timeout), device_(endpoint.device) {}
  ~Connection() { close(); }
  Connection(Connection const&) = delete;
  Connection& operator=(Connection const&) = delete;

  void connect(Id const& id) {
    run("connecting", [&](Comm& comm) { return Api::comm_init_rank(comm, size_, id, rank_); });
  }
  /// Collective over all ranks of the parent. NCCL fills in the new communicator some time after the parent has taken
  /// the call.
  void split_from(Connection& parent, int color) {
    parent.run("splitting off a group", [&](Comm& comm) { return Api::comm_split(comm, color, rank_, comm_); });
    run("connecting", [](Comm&) { return Result::in_progress; });
  }

  /// start(communicator) calls NCCL; returns when NCCL has taken what it was told.
  template <class Start>
  void run(std::string const& what, Start const& start) {
    std::unique_lock lock(mutex_);
    require_alive();
    auto result = start(comm_);
    auto const limit = Clock::now() + timeout_;
    for (int polls = 0; result == Result::in_progress; ++polls) {
      if (Clock::now() > limit) end(core::message(what, " took more than ", timeout_.count(), " ms", other_ranks()));
      lock.unlock();
      if (polls < 1000)
        std::this_thread::yield();  // launching takes microseconds, once ranks are connected
      else
        std::this_thread::sleep_for(Milliseconds(1));
      lock.lock();
      require_alive();
      result = state();
    }
    if (result == Result::success) return;
    end(core::message(what, ": ", Api::describe(result, comm_)));
    require_alive();
  }

  /// Numbers the call and has it watched until it is done.
  std::shared_ptr<Call> watch(Call call) {
    auto shared = std::make_shared<Call>(std::move(call));
    shared->limit = Clock::now() + timeout_;
    std::lock_guard const lock(mutex_);
    under_way_.push_back(shared);
    if (!watcher_.joinable()) watcher_ = std::thread([this] { poll(); });
    changed_.notify_all();
    return shared;
  }
  std::string next_call(char const* name) { return core::message("call ", num_calls_++, " of the group (", name, ")"); }

  /// Makes the caller's stream wait for the call; with a limit, and for a barrier, the caller itself.
  void wait(Call& call, Milliseconds limit) {
    if (limit.count() > 0 || call.holds_host) {
      auto const until = limit.count() > 0 ? Clock::now() + limit
                                           : Clock::time_point::max();  // or as long as poll() lets it
      std::unique_lock lock(mutex_);
      while (failure_.empty() && !call.end.reached()) {
        if (Clock::now() > until)
          end(core::message(call.what, " was not done within ", limit.count(), " ms", other_ranks()));
        changed_.wait_for(lock, Milliseconds(1));
      }
    }
    if (!failed()) call.end.hold_caller();
    call.tensors.clear();
    std::lock_guard const lock(mutex_);
    require_alive();
  }

  bool failed() const {
    std::lock_guard const lock(mutex_);
    return !failure_.empty();
  }
  void require_alive_now() const {
    std::lock_guard const lock(mutex_);
    require_alive();
  }

  /// The handle has NCCL know the memory until it goes, or the communicator does.
  static std::shared_ptr<void> register_buffer(std::shared_ptr<Connection> const& self, at::Tensor const& tensor) {
    void* handle = nullptr;
    self->run("registering a buffer",
              [&](Comm& comm) { return Api::comm_register(comm, tensor.data_ptr(), tensor.nbytes(), handle); });
    if (!handle) return nullptr;  // NCCL doesn't gain by it here
    std::lock_guard const lock(self->mutex_);
    self->registered_.insert(handle);
    return {handle, [self](void* known) {
              std::lock_guard const lock(self->mutex_);
              if (self->registered_.erase(known) > 0) Api::comm_deregister(self->comm_, known);
            }};
  }

  /// Lets NCCL finish what it was told, and leaves; unwinding from an exception, at once: the other ranks may never
  /// come.
  void close() noexcept {
    {
      std::lock_guard const lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    if (watcher_.joinable()) watcher_.join();
    try {
      {
        std::lock_guard const lock(mutex_);
        if (comm_ && std::uncaught_exceptions() > 0) end("left by an exception");
        if (!comm_) return;
        for (auto* const handle : registered_) Api::comm_deregister(comm_, handle);
        registered_.clear();
      }
      run("leaving", [](Comm& comm) { return Api::comm_finalize(comm); });
      std::lock_guard const lock(mutex_);
      Api::comm_destroy(std::exchange(comm_, Comm{}));
      failure_ = "NCCL: the group has been left";
    } catch (...) {  // the communicator has been ended, and nobody is there to be told
    }
  }

 private:
  Result state() const {
    if (!comm_) return Result::in_progress;  // a split: see above
    auto now = Result::success;
    auto const asked = Api::comm_async_error(comm_, now);
    return asked == Result::success ? now : asked;
  }
  void require_alive() const {
    if (!failure_.empty()) fail<Error>(failure_);
  }
  std::string other_ranks() const {
    return core::message(" on rank ", rank_, " of ", size_,
                         ": another rank has failed, is late, or makes other calls; see the first message of any rank, "
                         "or raise LaunchOptions::collective_timeout");
  }
  /// With the mutex held. The first reason is the one that everybody is told.
  void end(std::string reason) {
    if (!failure_.empty()) return;
    failure_ = "NCCL: " + std::move(reason);
    registered_.clear();  // went with the communicator
    if (comm_) Api::comm_abort(std::exchange(comm_, Comm{}));
    changed_.notify_all();
  }

  /// See [Note: NCCL's errors are polled].
  void poll() {
    constexpr Milliseconds interval{10};
    Api::Stream::enter_thread(device_);
    std::unique_lock lock(mutex_);
    while (!closing_) try {
        std::deque<std::shared_ptr<Call>> done;  // goes, with tensors that nobody waited for, when the mutex is free
        while (!under_way_.empty() && under_way_.front()->end.reached()) {
          done.push_back(std::move(under_way_.front()));
          under_way_.pop_front();
        }
        if (!under_way_.empty() && failure_.empty()) {
          auto const& call = *under_way_.front();
          if (auto const now = state(); now != Result::success && now != Result::in_progress)
            end(core::message(call.what, ": ", Api::describe(now, comm_), other_ranks()));
          else if (Clock::now() > call.limit)
            end(core::message(call.what, " was not done within ", timeout_.count(), " ms", other_ranks()));
        }
        if (!done.empty()) {
          lock.unlock();
          done.clear();
          lock.lock();
          continue;
        }
        if (under_way_.empty())
          changed_.wait(lock, [&] { return closing_ || !under_way_.empty(); });
        else
          changed_.wait_for(lock, interval, [&] { return closing_; });
      } catch (std::exception const& error) {  // a device that is broken says so to whoever asks for a mark
        end(core::message("the device reports: ", error.what()));
        under_way_.clear();
      }
  }

  int const rank_, size_;
  Milliseconds const timeout_;
  at::Device const device_;
  std::uint64_t num_calls_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Comm comm_{};
  std::string failure_;  // empty while the communicator works
  std::set<void*> registered_;
  std::deque<std::shared_ptr<Call>> under_way_;
  bool closing_ = false;
  std::thread watcher_;  // started by the first call
};

}  // namespace weft::comm::nccl
