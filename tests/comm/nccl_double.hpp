// nccl_double.hpp -- NCCL's C interface over processes and CPU memory, for comm/nccl_direct.hpp.
// In: calls, as nccl.h means them, from ranks that were forked after the Arena was made. Out: data moved, a log of the
// calls, and the first misuse: what NCCL would answer with a hang or with wrong numbers is a sentence here.
//
// As NCCL's non-blocking communicators: a call is taken only when the communicator's state says so, a split fills in
// the new communicator after its parent has taken the call, and what was launched runs later, on the stream (here: a
// thread), as soon as all ranks have launched it.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <weft/comm/nccl_connection.hpp>

namespace test::nccl_double {

using weft::comm::nccl::Id;
using weft::comm::nccl::Op;
using weft::comm::nccl::Result;
using weft::comm::nccl::Type;

inline constexpr int max_ranks = 4, max_groups = 24, max_splits = 4;

// ---- what ranks share
// ------------------------------------------------------------------------------------------------

/// What a rank launches, as the others compare it.
struct Launched {
  char call[16];
  std::uint64_t count;
  Type type;
  Op op;
  int root;
  bool operator==(Launched const& other) const {
    return std::strcmp(call, other.call) == 0 && count == other.count && type == other.type && op == other.op &&
           root == other.root;
  }
};
template <std::size_t Capacity>
struct Box {
  std::atomic<std::uint64_t> posted, taken;  // how many have been put in; how many times one has been read
  Launched what;
  char data[Capacity];
};
struct Split {
  std::atomic<int> arrived;
  std::atomic<int> color[max_ranks], key[max_ranks],
      made[max_ranks];  // made: 1 + the group of the color that this rank leads
};
struct SharedGroup {
  std::atomic<int> size, arrived;
  Box<1 << 18> boxes[max_ranks];
  Box<1 << 14> pipes[max_ranks][max_ranks];  // from, to
  Split splits[max_splits];
};
/// Lets a rank's n-th call of a name fail, or its communicator after its n-th group of calls.
struct Fault {
  int rank = -1;
  char call[24] = "";
  int nth = 0;
  Result result = Result::success;
};

struct Shared {
  std::atomic<int> num_groups, open;  // open: communicators that were neither destroyed nor aborted
  std::atomic<bool> misused;
  char misuse[512];
  char logs[max_ranks][1 << 14];
  Fault fault;
  SharedGroup groups[max_groups];
};
inline Shared* shared = nullptr;

inline int& this_rank() {  // in the first group that it joins: the world
  static int rank = -1;
  return rank;
}

/// Made by the test before ranks are forked.
class Arena {
 public:
  explicit Arena(Fault const& fault = {}) {
    auto* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no shared memory for the double of NCCL");
    shared = new (memory) Shared;  // default-initialized: mmap's zeros stay
    shared->fault = fault;
    this_rank() = -1;
  }
  ~Arena() { ::munmap(std::exchange(shared, nullptr), sizeof(Shared)); }
  Arena(Arena const&) = delete;
  Arena& operator=(Arena const&) = delete;

  std::string misuse() const { return shared->misuse; }
  std::string log(int rank) const { return shared->logs[rank]; }
  int open() const { return shared->open; }
};

inline void misuse(std::string const& what) {
  if (!shared->misused.exchange(true)) std::strncpy(shared->misuse, what.c_str(), sizeof shared->misuse - 1);
}

// ---- one process
// -------------------------------------------------------------------------------------------------------

inline void log(std::string const& line) {
  static std::mutex mutex;
  std::lock_guard const lock(mutex);
  auto* const text = shared->logs[std::max(0, this_rank())];
  auto const used = std::strlen(text);
  std::strncpy(text + used, (line + "\n").c_str(), sizeof shared->logs[0] - used - 1);
}
inline bool is_hit(std::string const& call) {
  static std::mutex mutex;
  static int count = 0;
  std::lock_guard const lock(mutex);
  return shared->fault.rank == this_rank() && call == shared->fault.call && count++ == shared->fault.nth;
}
inline std::string name_of(Type type) {
  switch (type) {
    case Type::int8:
      return "int8";
    case Type::uint8:
      return "uint8";
    case Type::int32:
      return "int32";
    case Type::int64:
      return "int64";
    case Type::float16:
      return "float16";
    case Type::float32:
      return "float32";
    case Type::float64:
      return "float64";
    case Type::bfloat16:
      return "bfloat16";
  }
  return "?";
}
inline at::ScalarType torch_type(Type type) {
  for (auto const known :
       {at::kChar, at::kByte, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble, at::kBFloat16})
    if (weft::comm::nccl::type_of(known) == type) return known;
  throw std::runtime_error("no such dtype");
}
inline std::size_t bytes_of(Type type, std::size_t count) { return count * c10::elementSize(torch_type(type)); }

/// A stream is a thread that runs what it is given, in order.
class Stream {
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    std::uint64_t given = 0, done = 0;
    bool closing = false;
    std::thread thread;

    Queue() : thread([this] { run(); }) {}
    ~Queue() {
      {
        std::lock_guard const lock(mutex);
        closing = true;
      }
      changed.notify_all();
      thread.join();
    }
    void run() {
      std::unique_lock lock(mutex);
      for (;;) {
        changed.wait(lock, [&] { return closing || !tasks.empty(); });
        if (tasks.empty()) return;
        auto const task = std::move(tasks.front());
        tasks.pop_front();
        lock.unlock();
        task();
        lock.lock();
        ++done;
        changed.notify_all();
      }
    }
  };

 public:
  class Mark {
   public:
    Mark() = default;
    Mark(std::shared_ptr<Queue> queue, std::uint64_t at) : queue_(std::move(queue)), at_(at) {}
    bool reached() const {
      std::lock_guard const lock(queue_->mutex);
      return queue_->done >= at_;
    }
    void hold_caller() const {
      std::unique_lock lock(queue_->mutex);
      queue_->changed.wait(lock, [&] { return queue_->done >= at_; });
    }

   private:
    std::shared_ptr<Queue> queue_;
    std::uint64_t at_ = 0;
  };

  explicit Stream(at::Device) : queue_(std::make_shared<Queue>()) {}
  void follow_caller() {}  // the caller is a CPU: what it was told is done
  Mark mark() {
    std::lock_guard const lock(queue_->mutex);
    return {queue_, queue_->given};
  }
  void complete(c10::ivalue::Future& future, c10::IValue value, Mark const& end) {
    end.hold_caller();
    future.markCompleted(std::move(value));
  }
  static void enter_thread(at::Device) {}
  void add(std::function<void()> task) {
    {
      std::lock_guard const lock(queue_->mutex);
      queue_->tasks.push_back(std::move(task));
      ++queue_->given;
    }
    queue_->changed.notify_all();
  }

 private:
  std::shared_ptr<Queue> queue_;
};

/// A send or receive has a peer, everything else is a collective of all ranks.
struct Task {
  Launched what{};
  void const* input = nullptr;
  void* output = nullptr;
  std::size_t input_bytes = 0;
  int peer = -1;
  std::string text() const {
    return std::string(what.call) + " " + name_of(what.type) + " x " + std::to_string(what.count) +
           (peer >= 0 ? " with " + std::to_string(peer) : "") +
           (what.root >= 0 ? " root " + std::to_string(what.root) : "") +
           (what.op != Op::sum ? " op " + std::to_string(static_cast<int>(what.op)) : "");
  }
};

struct Communicator {
  SharedGroup* group = nullptr;
  int rank = 0, size = 1;
  std::atomic<Result> state = Result::in_progress;
  std::function<bool()> taken;  // what the state waits for
  std::atomic<bool> ended = false;
  std::atomic<int> running = 0;
  std::atomic<bool> inside = false;  // a thread is in a call
  std::uint64_t collectives = 0;
  std::array<std::uint64_t, max_ranks> sent{}, received{};
  int num_splits = 0, num_groups = 0;
  std::set<void*> registered;

  // ---- on the stream's thread: whatever waits for other ranks ends with the communicator
  template <class Condition>
  bool until(Condition const& holds) const {
    while (!holds()) {
      if (ended) return false;
      std::this_thread::yield();
    }
    return true;
  }

  void run(std::vector<Task> const& tasks) {
    for (auto const& task : tasks)
      if (task.peer < 0 && !run_collective(task)) return;
    // Messages of one group make progress together.
    struct Message {
      Task const* task;
      bool posted = false;
    };
    std::vector<Message> open;
    for (auto const& task : tasks)
      if (task.peer >= 0) open.push_back({&task});
    until([&] {
      std::set<std::pair<bool, int>> blocked;  // messages of one pair stay in order
      std::erase_if(open, [&](Message& message) {
        auto const& task = *message.task;
        bool const sends = task.input;
        if (blocked.contains({sends, task.peer})) return false;
        if (sends ? try_send(task, message.posted) : try_receive(task)) return true;
        blocked.insert({sends, task.peer});
        return false;
      });
      return open.empty();
    });
  }

  /// Done when the message was received: NCCL need not have room for it.
  bool try_send(Task const& task, bool& posted) {
    auto& pipe = group->pipes[rank][task.peer];
    auto& count = sent[static_cast<std::size_t>(task.peer)];
    if (!std::exchange(posted, true)) {
      std::memcpy(pipe.data, task.input, task.input_bytes);
      pipe.what = task.what;
      pipe.posted = ++count;
    }
    return pipe.taken == count;
  }
  bool try_receive(Task const& task) {
    auto& pipe = group->pipes[task.peer][rank];
    auto& count = received[static_cast<std::size_t>(task.peer)];
    if (pipe.posted != count + 1) return false;
    if (pipe.what.count != task.what.count || pipe.what.type != task.what.type)
      misuse("rank " + std::to_string(task.peer) + " sends " + name_of(pipe.what.type) + " x " +
             std::to_string(pipe.what.count) + ", rank " + std::to_string(rank) + " receives " + task.text());
    std::memcpy(
        task.output, pipe.data,
        std::min<std::size_t>(bytes_of(task.what.type, task.what.count), bytes_of(pipe.what.type, pipe.what.count)));
    pipe.taken = ++count;
    return true;
  }

  bool run_collective(Task const& task) {
    auto const now = ++collectives;
    auto& mine = group->boxes[rank];
    if (!until([&] { return mine.taken == (now - 1) * static_cast<std::uint64_t>(size); })) return false;
    std::memcpy(mine.data, task.input, task.input_bytes);
    mine.what = task.what;
    mine.posted = now;
    if (!until([&] {
          for (int other = 0; other < size; ++other)
            if (group->boxes[other].posted < now) return false;
          return true;
        }))
      return false;
    std::vector<at::Tensor> inputs;
    auto const type = torch_type(task.what.type);
    for (int other = 0; other < size; ++other) {
      auto& theirs = group->boxes[other];
      if (!(theirs.what == task.what))
        misuse("rank " + std::to_string(rank) + " launches " + task.text() + ", rank " + std::to_string(other) +
               " another call: " + theirs.what.call + " x " + std::to_string(theirs.what.count));
      inputs.push_back(
          at::from_blob(theirs.data, {static_cast<std::int64_t>(task.input_bytes / c10::elementSize(type))}, type));
    }
    finish(task, inputs);
    for (int other = 0; other < size; ++other) ++group->boxes[other].taken;
    return true;
  }
  void finish(Task const& task, std::vector<at::Tensor> const& inputs) {
    std::string const call = task.what.call;
    auto const count = static_cast<std::int64_t>(task.what.count);
    auto const output = [&](std::int64_t numel) {
      return at::from_blob(task.output, {numel}, torch_type(task.what.type));
    };
    if (call == "all_gather") return void(output(count * size).copy_(at::cat(inputs)));
    if (call == "broadcast") return void(output(count).copy_(inputs[static_cast<std::size_t>(task.what.root)]));
    if (call == "reduce" && task.what.root != rank) return;
    auto sum = inputs.front().clone();
    for (std::size_t i = 1; i < inputs.size(); ++i) switch (task.what.op) {
        case Op::sum:
        case Op::average:
          sum.add_(inputs[i]);
          break;
        case Op::product:
          sum.mul_(inputs[i]);
          break;
        case Op::min:
          sum = at::minimum(sum, inputs[i]);
          break;
        case Op::max:
          sum = at::maximum(sum, inputs[i]);
          break;
      }
    if (task.what.op == Op::average) sum.div_(size);
    output(count).copy_(call == "reduce_scatter" ? sum.narrow(0, rank * count, count) : sum);
  }
};

/// This process's communicators that were neither destroyed nor aborted.
struct Alive {
  static bool has(Communicator* comm) {
    std::lock_guard const lock(mutex);
    return set.contains(comm);
  }
  static void add(Communicator* comm) {
    std::lock_guard const lock(mutex);
    set.insert(comm);
  }
  static bool remove(Communicator* comm) {
    std::lock_guard const lock(mutex);
    return set.erase(comm) > 0;
  }

 private:
  static inline std::mutex mutex;
  static inline std::set<Communicator*> set;
};
struct OpenGroup {
  int depth = 0;
  Communicator* comm = nullptr;
  Stream* stream = nullptr;
  std::vector<Task> tasks;
};
inline OpenGroup& open_group() {
  thread_local OpenGroup group;
  return group;
}

/// Each call on a communicator: it is there, ready, and nobody else is in a call on it.
class Entered {
 public:
  Entered(Communicator* comm, std::string const& call, bool needs_ready = true) : comm_(comm) {
    if (!Alive::has(comm)) {
      misuse(call + " on a communicator that is gone");
      result = Result::invalid_argument;
      comm_ = nullptr;
      return;
    }
    if (comm->inside.exchange(true)) misuse(call + " while another thread is in a call on the communicator");
    if (needs_ready && comm->state != Result::success) {
      misuse(call + " on a communicator that is not ready");
      result = Result::invalid_usage;
    } else if (is_hit(call)) {
      result = shared->fault.result;
    }
  }
  ~Entered() {
    if (comm_) comm_->inside = false;
  }
  Result result = Result::success;

 private:
  Communicator* comm_;
};

struct Api {
  using Comm = Communicator*;
  using Stream = nccl_double::Stream;

  static Result get_unique_id(Id& id) {
    int const group = shared->num_groups++;
    if (group >= max_groups) throw std::runtime_error("the double of NCCL has room for fewer groups");
    std::memcpy(id.bytes, &group, sizeof group);
    return is_hit("get_unique_id") ? shared->fault.result : Result::success;
  }
  static Result comm_init_rank(Comm& comm, int size, Id const& id, int rank) {
    if (this_rank() < 0) this_rank() = rank;
    log("init " + std::to_string(rank) + " of " + std::to_string(size));
    int group = 0;
    std::memcpy(&group, id.bytes, sizeof group);
    comm = join(group, size, rank);
    return is_hit("comm_init_rank") ? shared->fault.result : Result::in_progress;
  }
  static Result comm_split(Comm parent, int color, int key, Comm& comm) {
    Entered const entered(parent, "comm_split");
    if (entered.result != Result::success) return entered.result;
    log("split color " + std::to_string(color) + " key " + std::to_string(key));
    auto& split = parent->group->splits[parent->num_splits++ % max_splits];
    split.color[parent->rank] = color;
    split.key[parent->rank] = key;
    ++split.arrived;
    parent->state = Result::in_progress;
    parent->taken = [parent, color, key, &split, &comm, polls = 0]() mutable {
      if (split.arrived < parent->size) return false;
      int size = 0, place = 0, leader = parent->rank;
      for (int other = 0; other < parent->size; ++other) {
        if (split.color[other] != color) continue;
        ++size;
        place += split.key[other] < key;
        if (split.key[other] < split.key[leader]) leader = other;
      }
      if (leader == parent->rank && split.made[leader] == 0) split.made[leader] = 1 + shared->num_groups++;
      if (split.made[leader] == 0) return false;
      if (++polls < 3) return false;
      // Later than the parent's state, as NCCL does it.
      std::thread([&comm, group = split.made[leader] - 1, size, place] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        comm = join(group, size, place);
      }).detach();
      return true;
    };
    return Result::in_progress;
  }
  static Result comm_async_error(Comm comm, Result& state) {
    Entered const entered(comm, "comm_async_error", /*needs_ready=*/false);
    if (entered.result != Result::success) return entered.result;
    if (comm->state == Result::in_progress && comm->taken()) comm->state = Result::success;
    state = comm->state;
    return Result::success;
  }
  static Result comm_finalize(Comm comm) {
    Entered const entered(comm, "comm_finalize");
    if (entered.result != Result::success) return entered.result;
    log("finalize");
    if (!comm->registered.empty()) misuse("finalize with registered buffers");
    comm->state = Result::in_progress;
    comm->taken = [comm] { return comm->running == 0; };
    return Result::in_progress;
  }
  static Result comm_destroy(Comm comm) {
    Entered const entered(comm, "comm_destroy");
    log("destroy");
    leave(comm);
    return entered.result;
  }
  static Result comm_abort(Comm comm) {
    Entered const entered(comm, "comm_abort", /*needs_ready=*/false);
    log("abort");
    leave(comm);
    return entered.result;
  }
  static Result comm_register(Comm comm, void* data, std::size_t bytes, void*& handle) {
    Entered const entered(comm, "comm_register");
    if (entered.result != Result::success) return entered.result;
    log("register " + std::to_string(bytes));
    if (!comm->registered.insert(data).second) misuse("a buffer is registered twice");
    handle = data;
    return Result::success;
  }
  static Result comm_deregister(Comm comm, void* handle) {
    Entered const entered(comm, "comm_deregister");
    if (entered.result != Result::success) return entered.result;
    log("deregister");
    if (comm->registered.erase(handle) == 0) misuse("deregister of a buffer that is not registered");
    return Result::success;
  }
  static std::string describe(Result result, Comm) {
    switch (result) {
      case Result::system_error:
        return "unhandled system error";
      case Result::remote_error:
        return "remote process exited or there was a network error";
      case Result::invalid_usage:
        return "invalid usage";
      default:
        return "error " + std::to_string(static_cast<int>(result));
    }
  }

  static Result group_start() {
    log("group {");
    if (open_group().depth++ > 0) misuse("a group inside of a group");
    return is_hit("group_start") ? shared->fault.result : Result::success;
  }
  static Result group_end() {
    log("}");
    if (open_group().depth-- == 0) misuse("group_end without group_start");
    auto group = std::exchange(open_group(), {});
    if (!group.comm) return Result::success;  // nothing was told
    if (is_hit("group_end")) return shared->fault.result;
    auto* const comm = group.comm;
    int const number = comm->num_groups++;
    auto const& fault = shared->fault;
    bool const breaks = fault.rank == this_rank() && std::strcmp(fault.call, "asynchronous") == 0 &&
                        number == fault.nth;
    comm->state = Result::in_progress;
    comm->taken = [comm, breaks, tasks = std::move(group.tasks), stream = *group.stream, polls = 0]() mutable {
      if (++polls < 3) return false;
      ++comm->running;
      stream.add([comm, breaks, tasks = std::move(tasks)] {
        if (!breaks)
          comm->run(tasks);
        else
          comm->until([comm] { return comm->state = shared->fault.result, false; });  // never done
        --comm->running;
      });
      return true;
    };
    return Result::in_progress;
  }

  static Result all_reduce(void const* input, void* output, std::size_t count, Type type, Op op, Comm comm,
                           Stream& stream) {
    return tell(comm, stream, {what("all_reduce", count, type, op), input, output, bytes_of(type, count), -1});
  }
  static Result reduce(void const* input, void* output, std::size_t count, Type type, Op op, int root, Comm comm,
                       Stream& stream) {
    return tell(comm, stream, {what("reduce", count, type, op, root), input, output, bytes_of(type, count), -1});
  }
  static Result broadcast(void const* input, void* output, std::size_t count, Type type, int root, Comm comm,
                          Stream& stream) {
    return tell(comm, stream,
                {what("broadcast", count, type, Op::sum, root), input, output, bytes_of(type, count), -1});
  }
  static Result all_gather(void const* input, void* output, std::size_t count, Type type, Comm comm, Stream& stream) {
    return tell(comm, stream, {what("all_gather", count, type, Op::sum), input, output, bytes_of(type, count), -1});
  }
  static Result reduce_scatter(void const* input, void* output, std::size_t count, Type type, Op op, Comm comm,
                               Stream& stream) {
    return tell(comm, stream,
                {what("reduce_scatter", count, type, op), input, output,
                 bytes_of(type, count) * static_cast<std::size_t>(comm->size), -1});
  }
  static Result send(void const* data, std::size_t count, Type type, int to, Comm comm, Stream& stream) {
    return tell(comm, stream, {what("send", count, type, Op::sum), data, nullptr, bytes_of(type, count), to});
  }
  static Result receive(void* data, std::size_t count, Type type, int from, Comm comm, Stream& stream) {
    return tell(comm, stream, {what("receive", count, type, Op::sum), nullptr, data, 0, from});
  }

 private:
  static Launched what(char const* call, std::size_t count, Type type, Op op, int root = -1) {
    Launched launched{{}, count, type, op, root};
    std::strncpy(launched.call, call, sizeof launched.call - 1);
    return launched;
  }
  static Comm join(int number, int size, int rank) {
    auto* const comm = new Communicator;
    comm->group = &shared->groups[number];
    comm->rank = rank;
    comm->size = size;
    ++shared->open;
    Alive::add(comm);
    ++comm->group->arrived;
    comm->taken = [comm] { return comm->group->arrived >= comm->size; };
    return comm;
  }
  static void leave(Comm comm) {
    if (!Alive::has(comm)) return;
    comm->ended = true;
    while (comm->running > 0) std::this_thread::yield();
    if (Alive::remove(comm)) --shared->open;
    // Never freed: calls on it are told from calls on another one.
  }
  static Result tell(Comm comm, Stream& stream, Task task) {
    Entered const entered(comm, task.what.call);
    if (entered.result != Result::success) return entered.result;
    log(task.text());
    auto& group = open_group();
    if (group.depth == 0) misuse(task.text() + " outside of a group");
    if (group.comm && group.comm != comm) misuse("two communicators in one group");
    if (task.input_bytes > (task.peer < 0 ? sizeof Box<1 << 18>::data : sizeof Box<1 << 14>::data))
      misuse(task.text() + " is larger than the double has room for");
    group.comm = comm;
    group.stream = &stream;
    group.tasks.push_back(std::move(task));
    return Result::success;
  }
};

}  // namespace test::nccl_double
