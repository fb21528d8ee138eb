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

namespace detail {

/// Equal lengths travel: that of the longest.
WEFT_INLINE at::Tensor padded(std::string const& bytes, std::vector<int64_t> const& sizes, at::Device device) {
  auto const row = at::zeros({*std::max_element(sizes.begin(), sizes.end())}, at::TensorOptions(at::kByte));
  if (!bytes.empty()) std::memcpy(row.data_ptr(), bytes.data(), bytes.size());
  return row.to(device);
}
WEFT_INLINE std::vector<std::string> unpadded(std::vector<at::Tensor> const& rows, std::vector<int64_t> const& sizes) {
  std::vector<std::string> all;
  for (auto const& row : rows) {
    auto const here = row.cpu();
    all.emplace_back(static_cast<char const*>(here.const_data_ptr()), static_cast<std::size_t>(sizes[all.size()]));
  }
  return all;
}

}  // namespace detail

WEFT_INLINE std::vector<std::string> all_gather_bytes(Communicator& group, std::string const& bytes) {
  auto const sizes = gathered(&group, static_cast<int64_t>(bytes.size()));
  return detail::unpadded(gathered(&group, detail::padded(bytes, sizes, group.device())).cpu().unbind(), sizes);
}

WEFT_INLINE std::vector<std::string> gather_bytes(Communicator& group, std::string const& bytes, int destination) {
  auto const sizes = gathered(&group, static_cast<int64_t>(bytes.size()));
  auto const row = detail::padded(bytes, sizes, group.device());
  if (row.numel() == 0) return std::vector<std::string>(group.rank() == destination ? sizes.size() : 0);
  return detail::unpadded(group.gather(row, destination), sizes);
}

}  // namespace weft::comm
