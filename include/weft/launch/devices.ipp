// launch/devices.ipp -- definitions of launch/devices.hpp.
#pragma once

#include <weft/launch/devices.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include <weft/core/build.hpp>

namespace weft::inline v0::launch {

WEFT_INLINE int count_cuda_devices() {
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

}  // namespace weft::launch
