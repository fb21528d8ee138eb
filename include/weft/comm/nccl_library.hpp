// comm/nccl_library.hpp -- NCCL's C interface and CUDA's streams, as comm/nccl_connection.hpp and comm/nccl_direct.hpp
// want them.
// In: nccl.h. Out: nccl::Library, one static function for each of NCCL's that is used.
#pragma once

#ifdef USE_C10D_NCCL

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <ATen/core/ivalue.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <weft/comm/nccl_connection.hpp>

namespace weft::inline v0::comm::nccl {

/// The stream on which a backend's calls run. Copies are the same stream.
class CudaStream {
 public:
  /// A point in what the stream was told.
  class Mark {
   public:
    Mark() = default;
    explicit Mark(c10::cuda::CUDAStream const& stream)
        : event_(std::make_shared<at::cuda::CUDAEvent>()), device_(stream.device_index()) {
      event_->record(stream);
    }
    bool reached() const { return event_->query(); }
    void hold_caller() const { event_->block(c10::cuda::getCurrentCUDAStream(device_)); }

   private:
    std::shared_ptr<at::cuda::CUDAEvent> event_;
    c10::DeviceIndex device_ = 0;
  };

  explicit CudaStream(at::Device device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())) {}

  void follow_caller() {
    at::cuda::CUDAEvent now;
    now.record(c10::cuda::getCurrentCUDAStream(stream_.device_index()));
    now.block(stream_);
  }
  Mark mark() { return Mark(stream_); }
  void complete(c10::ivalue::Future& future, c10::IValue value, Mark const&) {
    c10::cuda::CUDAStreamGuard const guard(
        stream_);  // the future marks the current stream, here one on which the call has been launched
    future.markCompleted(std::move(value));
  }
  cudaStream_t handle() const { return stream_.stream(); }

  static void enter_thread(at::Device device) {
    c10::cuda::set_device(device.index());
  }  // asking for a mark on another device would open that one, too

 private:
  c10::cuda::CUDAStream stream_;
};

struct Library {
  using Comm = ncclComm_t;
  using Stream = CudaStream;

  static_assert(sizeof(Id::bytes) == NCCL_UNIQUE_ID_BYTES);
  static_assert(int(Result::success) == ncclSuccess && int(Result::system_error) == ncclSystemError &&
                int(Result::invalid_usage) == ncclInvalidUsage && int(Result::remote_error) == ncclRemoteError &&
                int(Result::in_progress) == ncclInProgress);
  static_assert(int(Type::int8) == ncclInt8 && int(Type::uint8) == ncclUint8 && int(Type::int32) == ncclInt32 &&
                int(Type::int64) == ncclInt64 && int(Type::float16) == ncclFloat16 &&
                int(Type::float32) == ncclFloat32 && int(Type::float64) == ncclFloat64 &&
                int(Type::bfloat16) == ncclBfloat16);
  static_assert(int(Op::sum) == ncclSum && int(Op::product) == ncclProd && int(Op::max) == ncclMax &&
                int(Op::min) == ncclMin && int(Op::average) == ncclAvg);

  static Result get_unique_id(Id& id) {
    ncclUniqueId made{};
    auto const result = ncclGetUniqueId(&made);
    std::memcpy(id.bytes, made.internal, sizeof id.bytes);
    return Result(result);
  }
  static Result comm_init_rank(Comm& comm, int size, Id const& id, int rank) {
    ncclUniqueId made{};
    std::memcpy(made.internal, id.bytes, sizeof id.bytes);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return Result(ncclCommInitRankConfig(&comm, size, made, rank, &config));
  }
  static Result comm_split(Comm parent, int color, int key, Comm& comm) {
    return Result(ncclCommSplit(parent, color, key, &comm, nullptr));
  }  // non-blocking as its parent
  static Result comm_async_error(Comm comm, Result& state) {
    auto now = ncclSuccess;
    auto const result = ncclCommGetAsyncError(comm, &now);
    state = Result(now);
    return Result(result);
  }
  static Result comm_finalize(Comm comm) { return Result(ncclCommFinalize(comm)); }
  static Result comm_destroy(Comm comm) { return Result(ncclCommDestroy(comm)); }
  static Result comm_abort(Comm comm) { return Result(ncclCommAbort(comm)); }
  static Result comm_register(Comm comm, void* data, std::size_t bytes, void*& handle) {
    return Result(ncclCommRegister(comm, data, bytes, &handle));
  }
  static Result comm_deregister(Comm comm, void* handle) { return Result(ncclCommDeregister(comm, handle)); }
  static std::string describe(Result result, Comm comm) {
    std::string text = ncclGetErrorString(ncclResult_t(result));
    char const* const last = ncclGetLastError(comm);
    if (last && *last) text += std::string(" (") + last + ")";
    for (auto& letter : text)
      if (letter == '\n') letter = ' ';
    return text;
  }

  static Result group_start() { return Result(ncclGroupStart()); }
  static Result group_end() { return Result(ncclGroupEnd()); }
  static Result all_reduce(void const* input, void* output, std::size_t count, Type type, Op op, Comm comm,
                           Stream& stream) {
    return Result(ncclAllReduce(input, output, count, ncclDataType_t(type), ncclRedOp_t(op), comm, stream.handle()));
  }
  static Result reduce(void const* input, void* output, std::size_t count, Type type, Op op, int root, Comm comm,
                       Stream& stream) {
    return Result(ncclReduce(input, output, count, ncclDataType_t(type), ncclRedOp_t(op), root, comm, stream.handle()));
  }
  static Result broadcast(void const* input, void* output, std::size_t count, Type type, int root, Comm comm,
                          Stream& stream) {
    return Result(ncclBroadcast(input, output, count, ncclDataType_t(type), root, comm, stream.handle()));
  }
  static Result all_gather(void const* input, void* output, std::size_t count, Type type, Comm comm, Stream& stream) {
    return Result(ncclAllGather(input, output, count, ncclDataType_t(type), comm, stream.handle()));
  }
  static Result reduce_scatter(void const* input, void* output, std::size_t count, Type type, Op op, Comm comm,
                               Stream& stream) {
    return Result(
        ncclReduceScatter(input, output, count, ncclDataType_t(type), ncclRedOp_t(op), comm, stream.handle()));
  }
  static Result send(void const* data, std::size_t count, Type type, int to, Comm comm, Stream& stream) {
    return Result(ncclSend(data, count, ncclDataType_t(type), to, comm, stream.handle()));
  }
  static Result receive(void* data, std::size_t count, Type type, int from, Comm comm, Stream& stream) {
    return Result(ncclRecv(data, count, ncclDataType_t(type), from, comm, stream.handle()));
  }
};

}  // namespace weft::comm::nccl

#endif
