// comm/gloo.hpp -- what the policy Gloo creates: c10d's Gloo backend over TCP, with a direct reduce-scatter, all-gather
// and gather.
// In: a store, rank and size. Out: a c10d::Backend.
#pragma once

#ifndef USE_C10D_GLOO
#error \
    "weft: build with -DUSE_C10D_GLOO=1 (weft's Meson dependency and pkg-config file do): c10d's Gloo header is empty without it"
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <net/if.h>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
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
                                        c10d::GatherOptions const& options) override {
    bool const sends = inputs.size() == 1 && inputs[0].is_cpu() && inputs[0].layout() == at::kStrided &&
                       inputs[0].numel() > 0;
    if (sends && options.rootRank >= 0 && options.rootRank < getSize())
      return exchange_to(static_cast<std::size_t>(options.rootRank), outputs, inputs[0]);
    return ProcessGroupGloo::gather(outputs, inputs, options);
  }

 private:
  using Combine = at::Tensor& (*)(at::Tensor&, at::Tensor const&, at::Tensor const&);
  static Combine combine_of(c10d::ReduceOp const& op) {
    switch (op) {
      case c10d::ReduceOp::SUM:
        return [](at::Tensor& out, at::Tensor const& a, at::Tensor const& b) -> at::Tensor& {
          return at::add_out(out, a, b);
        };
      case c10d::ReduceOp::PRODUCT:
        return [](at::Tensor& out, at::Tensor const& a, at::Tensor const& b) -> at::Tensor& {
          return at::mul_out(out, a, b);
        };
      case c10d::ReduceOp::MIN:
        return [](at::Tensor& out, at::Tensor const& a, at::Tensor const& b) -> at::Tensor& {
          return at::minimum_out(out, a, b);
        };
      case c10d::ReduceOp::MAX:
        return [](at::Tensor& out, at::Tensor const& a, at::Tensor const& b) -> at::Tensor& {
          return at::maximum_out(out, a, b);
        };
      default:
        return nullptr;
    }
  }

  /// What is not exchanged goes to c10d, which does it its way or says why not. All ranks decide alike.
  bool exchanges(at::Tensor const& output, at::Tensor const& input, c10d::ReduceOp const& op) const {
    return is_reducible(input.scalar_type()) && combine_of(op) && exchanges(input, output);
  }
  bool exchanges(at::Tensor const& whole, at::Tensor const& part) const {
    return whole.is_cpu() && part.is_cpu() && whole.layout() == at::kStrided && part.layout() == at::kStrided &&
           whole.scalar_type() == part.scalar_type() && whole.is_contiguous() && part.is_contiguous() &&
           whole.numel() == part.numel() * getSize();
  }

  c10::intrusive_ptr<c10d::Work> exchange_and_reduce(at::Tensor const& output, at::Tensor const& input,
                                                     c10d::ReduceOp const& op) {
    auto const rank = static_cast<std::size_t>(getRank()), size = static_cast<std::size_t>(getSize());
    at::NoGradGuard const no_grad;
    auto const result = output.detach().view({-1});
    auto const count = result.numel();
    auto chunks = input.detach().view({getSize(), count}).unbind(0);  // who gets what
    bool const overlap = at::get_overlap_status(result, input) != at::MemOverlapStatus::No;
    if (overlap &&
        result.const_data_ptr() != chunks[rank].const_data_ptr())  // it would be written while others' chunks are sent
      chunks = input.detach().clone().view({getSize(), count}).unbind(0);
    // Where each rank's part of the sum is read: this rank's in the input, the last received one in the output where
    // that is free.
    auto parts = std::vector<at::Tensor>(size);
    parts[rank] = chunks[rank];
    if (size > 1 && !overlap) parts[rank == size - 1 ? size - 2 : size - 1] = result;
    for (auto& part : parts)
      if (!part.defined()) part = at::empty_like(chunks[rank]);
    // Long chunks travel in pieces, so that one is added up, in cache, while the next arrives.
    auto const piece = std::max<std::int64_t>(1, piece_bytes / static_cast<std::int64_t>(result.element_size()));
    auto const num_pieces = static_cast<std::size_t>((count + piece - 1) / piece);
    auto const piece_of = [=](at::Tensor const& chunk, std::size_t index) {
      auto const begin = static_cast<std::int64_t>(index) * piece;
      return num_pieces == 1 ? chunk : chunk.narrow(0, begin, std::min(piece, count - begin));
    };

    auto exchange = c10::make_intrusive<Exchange>(
        getRank(), c10d::OpType::_REDUCE_SCATTER_BASE, num_pieces * size, background_,
        // Writes to received parts and, last, to the output, which may be this rank's chunk of the input.
        [=, sum = at::Tensor(), combine = combine_of(op)](std::size_t step) mutable {
          at::NoGradGuard const no_grad;
          auto const index = step / size, from = step % size;
          auto const next = piece_of(parts[from], index);
          if (from == 0) {
            sum = next;
            if (size == 1) piece_of(result, index).copy_(sum);
            return;
          }
          auto target = from == size - 1 ? piece_of(result, index) : from == 1 && rank == 0 ? next : sum;
          combine(target, sum, next);
          sum = target;
        });
    for (std::size_t index = 0; index < num_pieces; ++index)
      post(
          *exchange, index * size, [&](std::size_t from) { return piece_of(parts[from], index); },
          [&](std::size_t to) { return piece_of(chunks[to], index); });
    return exchange;
  }

  c10::intrusive_ptr<c10d::Work> exchange_all(at::Tensor const& output, at::Tensor const& input) {
    auto const rank = static_cast<std::size_t>(getRank());
    at::NoGradGuard const no_grad;
    auto part = input.detach().view({-1});
    auto const slots = output.detach().view({getSize(), part.numel()}).unbind(0);
    if (part.const_data_ptr() != slots[rank].const_data_ptr() &&
        at::get_overlap_status(part, output) != at::MemOverlapStatus::No)
      part = part.clone();  // another rank's slot would be filled while it is sent
    auto exchange = c10::make_intrusive<Exchange>(getRank(), c10d::OpType::_ALLGATHER_BASE, slots.size(), background_,
                                                  [=, own = slots[rank]](std::size_t from) {
                                                    if (from == rank && own.const_data_ptr() != part.const_data_ptr())
                                                      own.copy_(part);
                                                  });
    if (part.numel() > 0)
      post(*exchange, 0, [&](std::size_t from) { return slots[from]; }, [&](std::size_t) { return part; });
    return exchange;
  }

  c10::intrusive_ptr<c10d::Work> exchange_to(std::size_t root, std::vector<std::vector<at::Tensor>> const& outputs,
                                             at::Tensor const& input) {
    auto const rank = static_cast<std::size_t>(getRank()), size = static_cast<std::size_t>(getSize());
    at::NoGradGuard const no_grad;
    auto const part = input.detach().contiguous();
    std::vector<at::Tensor> slots;
    if (rank == root) {
      TORCH_CHECK(outputs.size() == 1 && outputs[0].size() == size, "gather: the root passes one list of ", size,
                  " outputs");
      for (auto const& output : outputs[0]) {
        TORCH_CHECK(output.sizes() == input.sizes() && output.scalar_type() == input.scalar_type() &&
                        output.is_contiguous() && output.is_cpu(),
                    "gather: an output is ", output.sizes(), " of ", output.scalar_type(), ", the input ",
                    input.sizes(), " of ", input.scalar_type(), "; outputs are contiguous, and like the input");
        slots.push_back(output.detach());
      }
    } else {
      TORCH_CHECK(outputs.empty(), "gather: outputs are the root's alone");
    }
    int const tag = next_tag();
    auto exchange = c10::make_intrusive<Exchange>(
        getRank(), c10d::OpType::GATHER, slots.size(), background_,
        [=, own = rank == root ? slots[rank] : at::Tensor()](std::size_t from) {
          if (from == rank && !own.is_same(part)) own.copy_(part);
        });
    for (std::size_t from = 0; from < slots.size(); ++from) {
      std::vector<at::Tensor> list{slots[from]};
      if (from != rank) exchange->receive(from, recv(list, static_cast<int>(from), tag));
    }
    std::vector<at::Tensor> list{part};
    if (rank != root) exchange->send(send(list, static_cast<int>(root), tag));
    return exchange;
  }

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
