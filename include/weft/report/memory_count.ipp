// report/memory_count.ipp -- definitions of report/memory_count.hpp.
#pragma once

#include <weft/report/memory_count.hpp>

#include <fstream>

#include <weft/core/build.hpp>

namespace weft::inline v0::report {

WEFT_INLINE std::size_t process_status_bytes(std::string const& field) {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    std::size_t kilobytes = 0;
    if (name == field + ":" && status >> kilobytes) return kilobytes * 1024;
    std::getline(status, name);
  }
  return 0;
}

}  // namespace weft::report
