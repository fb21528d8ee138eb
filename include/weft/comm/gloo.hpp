// comm/gloo.hpp -- what the policy Gloo creates: c10d's Gloo backend over TCP, with a direct reduce-scatter, all-gather
// and gather.
// In: a store, rank and size. Out: a c10d::Backend.
#pragma once

#ifndef USE_C10D_GLOO
#error \
    "weft: build with -DUSE_C10D_GLOO=1 (weft's Meson dependency and pkg-config file do): c10d's Gloo header is empty without it"
#endif

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <net/if.h>

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <weft/comm/backend.hpp>
#include <weft/comm/exchange.hpp>
#include <weft/core/error.hpp>
#include <weft/fwd.hpp>

namespace weft::inline v0::comm {

/// c10d's reduce-scatter over Gloo is a copy, an all-reduce of everything and a slice. Here each rank sends the others
/// their chunks and adds up the chunks that it receives, in rank order: the same bits whenever the same call is made.
///
///   rank 0 holds | a0 | a1 | a2 |    receives b0, c0    leaves a0 + b0 + c0
///   rank 1 holds | b0 | b1 | b2 |    receives a1, c1    leaves a1 + b1 + c1
///   rank 2 holds | c0 | c1 | c2 |    receives a2, b2    leaves a2 + b2 + c2
///
/// All-gather is the same exchange without the sum, and gather with one receiver. None waits for other ranks when it is
/// issued.
class GlooBackend final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  static constexpr int first_own_tag = 1 << 30;  // send and recv by other callers have the tags below
  static constexpr std::int64_t piece_bytes = 1 << 20;

#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 215
  // _reduce_scatter_base and _allgather_base, the older names, arrive here through c10d's own forwarding.
  c10::intrusive_ptr<c10d::Work> reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                                       c10d::ReduceScatterOptions const& options) override {
    if (exchanges(output, input, options.reduceOp)) return exchange_and_reduce(output, input, options.reduceOp);
    return ProcessGroupGloo::reduce_scatter_single(output, input, options);
  }
  c10::intrusive_ptr<c10d::Work> all_gather_single(at::Tensor& output, at::Tensor& input,
                                                   c10d::AllgatherOptions const& options) override {
    if (exchanges(output, input)) return exchange_all(output, input);
    return ProcessGroupGloo::all_gather_single(output, input, options);
  }
#else
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      c10d::ReduceScatterOptions const& options) override {
    if (exchanges(output, input, options.reduceOp)) return exchange_and_reduce(output, input, options.reduceOp);
    return ProcessGroupGloo::_reduce_scatter_base(output, input, options);
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 c10d::AllgatherOptions const& options) override {
    if (exchanges(output, input)) return exchange_all(output, input);
    return ProcessGroupGloo::_allgather_base(output, input, options);
  }
#endif
  /// c10d gathers into one flat piece first, and copies from there. All ranks decide by what they send, which is alike.
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                        c10d::GatherOptions const& options) override;

 private:
  using Combine = at::Tensor& (*)(at::Tensor&, at::Tensor const&, at::Tensor const&);
  static Combine combine_of(c10d::ReduceOp const& op);

  /// What is not exchanged goes to c10d, which does it its way or says why not. All ranks decide alike.
  bool exchanges(at::Tensor const& output, at::Tensor const& input, c10d::ReduceOp const& op) const {
    return is_reducible(input.scalar_type()) && combine_of(op) && exchanges(input, output);
  }
  bool exchanges(at::Tensor const& whole, at::Tensor const& part) const;

  c10::intrusive_ptr<c10d::Work> exchange_and_reduce(at::Tensor const& output, at::Tensor const& input,
                                                     c10d::ReduceOp const& op);

  c10::intrusive_ptr<c10d::Work> exchange_all(at::Tensor const& output, at::Tensor const& input);

  c10::intrusive_ptr<c10d::Work> exchange_to(std::size_t root, std::vector<std::vector<at::Tensor>> const& outputs,
                                             at::Tensor const& input);

  int next_tag() { return first_own_tag + static_cast<int>(num_messages_++ % first_own_tag); }

  /// One message from and to each other rank, receives first. Ranks start with different peers.
  template <class Received, class Sent>
  void post(Exchange& exchange, std::size_t first_part, Received const& received, Sent const& sent) {
    auto const rank = static_cast<std::size_t>(getRank()), size = static_cast<std::size_t>(getSize());
    int const tag = next_tag();
    for (std::size_t step = 1; step < size; ++step) {
      auto const from = (rank + size - step) % size;
      std::vector<at::Tensor> list{received(from)};
      exchange.receive(first_part + from, recv(list, static_cast<int>(from), tag));
    }
    for (std::size_t step = 1; step < size; ++step) {
      auto const to = (rank + step) % size;
      std::vector<at::Tensor> list{sent(to)};
      exchange.send(send(list, static_cast<int>(to), tag));
    }
  }

  std::atomic<std::uint32_t> num_messages_ = 0;
  std::shared_ptr<BackgroundThread> background_ = std::make_shared<BackgroundThread>();
};

template <>
struct BackendFactory<Gloo> {
  static constexpr c10d::ProcessGroup::BackendType type = c10d::ProcessGroup::BackendType::GLOO;

  static c10::intrusive_ptr<c10d::Backend> create(Endpoint const& endpoint) {
    if (!endpoint.device.is_cpu())
      fail<ConfigurationError>("Gloo moves what is in the CPU's memory, and this rank computes on ", endpoint.device,
                               "; build with CUDA and NCCL (-DUSE_C10D_NCCL=1) and write Nccl, or write On<Cpu>");
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->timeout = endpoint.timeout;
    options->devices = {device_at(endpoint.interface_address)};
    return c10::make_intrusive<GlooBackend>(endpoint.store, endpoint.rank, endpoint.size, std::move(options));
  }

 private:
  static std::shared_ptr<::gloo::transport::Device> device_at(std::string const& place) {
    if (place.empty()) return c10d::ProcessGroupGloo::createDefaultDevice();
    try {
      return ::if_nametoindex(place.c_str()) != 0 ? c10d::ProcessGroupGloo::createDeviceForInterface(place)
                                                  : c10d::ProcessGroupGloo::createDeviceForHostname(place);
    } catch (std::exception const& error) {
      fail<ConfigurationError>("Gloo cannot listen at ", place,
                               ", which is to be an interface of this node, or its name or address "
                               "(LaunchOptions::interface, GLOO_SOCKET_IFNAME): ",
                               error.what());
    }
  }
};

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/gloo.ipp>
#endif
