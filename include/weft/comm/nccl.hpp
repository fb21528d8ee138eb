// comm/nccl.hpp -- what the policies Nccl and NcclDirect create, where CUDA and NCCL are there to build with.
// In: a store, rank, size and CUDA device. Out: a c10d::Backend: c10d's own, or the one of comm/nccl_direct.hpp.
#pragma once

#ifdef USE_C10D_NCCL

#include <utility>
#include <vector>

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <weft/comm/backend.hpp>
#include <weft/comm/nccl_direct.hpp>
#include <weft/comm/nccl_library.hpp>
#include <weft/core/error.hpp>
#include <weft/fwd.hpp>

namespace weft::inline v0::comm {
namespace detail {

/// The rank's device is its process's from here on: for NCCL, which asks for the current one, and for tensors made on
/// "cuda".
inline void use_cuda_device(Endpoint const& endpoint) {
  if (!endpoint.device.is_cuda())
    fail<ConfigurationError>(
        "NCCL moves data between CUDA devices, and this node shows none; write Gloo, or leave the backend out");
  if (int const devices = c10::cuda::device_count(); endpoint.device.index() >= devices)
    fail<ConfigurationError>(
        "this rank's device is ", endpoint.device, ", but its process sees ", devices,
        " of them; give each process all devices of the node (CUDA_VISIBLE_DEVICES), or start fewer ranks");
  c10::cuda::set_device(endpoint.device.index());
}

}  // namespace detail

/// c10d's backend with what it leaves open decided: the communicator is there when the constructor returns, so that
/// other groups can be split from it, and tags are refused, since NCCL matches messages by their order. It has a
/// reduce-scatter, so nothing is exchanged as over Gloo; averages are the Communicator's sums, divided, since NCCL's
/// own average of fp16 divides all of it before the sum.
class NcclBackend final : public c10d::ProcessGroupNCCL {
 public:
  NcclBackend(Endpoint const& endpoint, c10::intrusive_ptr<Options> options)
      : ProcessGroupNCCL(endpoint.store, endpoint.rank, endpoint.size, std::move(options)) {
    setBoundDeviceId(endpoint.device);  // which a barrier, without tensors, has to guess otherwise
    eagerConnectSingleDevice(endpoint.device);
  }
  ~NcclBackend() override { shutdown(); }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    nccl::refuse_tag(tag);
    return ProcessGroupNCCL::send(tensors, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    nccl::refuse_tag(tag);
    return ProcessGroupNCCL::recv(tensors, from, tag);
  }
};

template <>
struct BackendFactory<Nccl> {
  static constexpr c10d::ProcessGroup::BackendType type = c10d::ProcessGroup::BackendType::NCCL;

  static c10::intrusive_ptr<c10d::Backend> create(Endpoint const& endpoint) {
    detail::use_cuda_device(endpoint);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = endpoint.timeout;
    if (auto parent = c10::dynamic_intrusive_pointer_cast<c10d::ProcessGroupNCCL>(endpoint.parent)) {
      options->split_from = std::move(parent);
      options->split_color = endpoint.color;
    }
    return c10::make_intrusive<NcclBackend>(endpoint, std::move(options));
  }
};

template <>
struct BackendFactory<NcclDirect> {
  static constexpr c10d::ProcessGroup::BackendType type = c10d::ProcessGroup::BackendType::CUSTOM;

  static c10::intrusive_ptr<c10d::Backend> create(Endpoint const& endpoint) {
    detail::use_cuda_device(endpoint);
    return connect_nccl<nccl::Library>(endpoint);
  }
};

}  // namespace weft::comm

#endif
