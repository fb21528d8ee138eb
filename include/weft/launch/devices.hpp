// launch/devices.hpp -- which accelerators this node has.
// In: the device policy, /dev and CUDA_VISIBLE_DEVICES. Out: a number, found without touching the CUDA runtime, which
// would make a later fork unsafe.
#pragma once

#include <type_traits>

#include <c10/core/Device.h>

#include <weft/core/error.hpp>
#include <weft/strategy/machine.hpp>

namespace weft::inline v0::launch {

/// NVIDIA devices of this node that CUDA would show.
int count_cuda_devices();

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

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/devices.ipp>
#endif
