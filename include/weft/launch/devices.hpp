// launch/devices.hpp -- which accelerators this node has.
// In: the device policy, /dev and CUDA_VISIBLE_DEVICES. Out: a number, found without touching the CUDA runtime, which
// would make a later fork unsafe.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

#include <c10/core/Device.h>

#include <weft/core/error.hpp>
#include <weft/strategy/machine.hpp>

namespace weft::inline v0::launch {

/// NVIDIA devices of this node that CUDA would show.
inline int count_cuda_devices() {
  int present = 0;
  std::error_code ignored;
  for (std::filesystem::directory_iterator it("/dev", ignored), end; it != end; it.increment(ignored)) {
    auto const name = it->path().filename().string();
    if (name.starts_with("nvidia") && name.size() > 6 &&
        std::all_of(name.begin() + 6, name.end(), [](char c) { return c >= '0' && c <= '9'; }))
      ++present;
  }
  char const* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) return present;
  std::string_view const list = visible;
  if (list.empty() || list.starts_with("-1")) return 0;
  return std::min<int>(present, static_cast<int>(std::count(list.begin(), list.end(), ',')) + 1);
}

/// Accelerators that ranks under this device policy use; 0: they run on the CPU.
template <class DevicePolicy>
int accelerators() {
  if constexpr (std::is_same_v<DevicePolicy, On<Cpu>>) {
    return 0;
  } else {
    int const devices = count_cuda_devices();
    if (std::is_same_v<DevicePolicy, On<Cuda>> && devices == 0)
      fail<ConfigurationError>(
          "weft: On<Cuda>: this node shows no CUDA device; write On<Cpu>, or leave the device out to use CUDA where "
          "there is one");
    return devices;
  }
}

inline at::Device device_of(int accelerators, int index) {
  return accelerators > 0 ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)) : at::Device(at::kCPU);
}

}  // namespace weft::launch
