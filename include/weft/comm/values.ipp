// comm/values.ipp -- definitions of comm/values.hpp.
#pragma once

#include <weft/comm/values.hpp>

#include <cstring>

#include <ATen/ATen.h>

#include <weft/core/build.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE at::Tensor values_of(char const* call, at::Tensor const& tensor) {
  auto const values = tensor.defined() ? tensor.detach().resolve_conj().resolve_neg() : tensor;
  if (auto const* const why = not_sendable(values)) fail<CommunicationError>("weft: ", call, ": ", why);
  return values;
}

WEFT_INLINE std::string broadcast_bytes(Communicator& group, std::string bytes, int source) {
  auto size = tensor_of(static_cast<int64_t>(bytes.size()), group.device());
  group.broadcast(size, source);
  bytes.resize(static_cast<std::size_t>(number_of<int64_t>(size)));
  if (bytes.empty()) return bytes;
  auto buffer = at::empty({static_cast<int64_t>(bytes.size())}, at::TensorOptions(at::kByte));
  std::memcpy(buffer.data_ptr(), bytes.data(), bytes.size());
  auto on_device = buffer.to(group.device());
  group.broadcast(on_device, source);
  buffer = on_device.cpu();
  std::memcpy(bytes.data(), buffer.const_data_ptr(), bytes.size());
  return bytes;
}

WEFT_INLINE std::vector<std::string> all_gather_bytes(Communicator& group, std::string const& bytes) {
  auto const own = at::empty({static_cast<int64_t>(bytes.size())}, at::TensorOptions(at::kByte));
  std::memcpy(own.data_ptr(), bytes.data(), bytes.size());
  std::vector<std::string> all;
  for (auto const& received : group.all_gather_uneven(own.to(group.device()))) {
    auto const here = received.cpu();
    all.emplace_back(static_cast<char const*>(here.const_data_ptr()), static_cast<std::size_t>(here.numel()));
  }
  return all;
}

WEFT_INLINE std::vector<std::string> gather_bytes(Communicator& group, std::string const& bytes, int destination) {
  auto const sizes = gathered(&group, static_cast<int64_t>(bytes.size()));
  // Equal lengths travel: that of the longest.
  auto buffer = at::zeros({*std::max_element(sizes.begin(), sizes.end())}, at::TensorOptions(at::kByte));
  if (buffer.numel() == 0) return std::vector<std::string>(group.rank() == destination ? sizes.size() : 0);
  std::memcpy(buffer.data_ptr(), bytes.data(), bytes.size());
  std::vector<std::string> all;
  for (auto const& received : group.gather(buffer.to(group.device()), destination)) {
    auto const here = received.cpu();
    all.emplace_back(static_cast<char const*>(here.const_data_ptr()), static_cast<std::size_t>(sizes[all.size()]));
  }
  return all;
}

}  // namespace weft::comm
