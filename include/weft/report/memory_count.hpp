// report/memory_count.hpp -- what this process holds.
// In: the kernel's account of the process. Out: bytes.
#pragma once

#include <cstddef>
#include <fstream>
#include <string>

namespace weft::inline v0::report {

/// A field of /proc/self/status in bytes (it is given in kB); 0 where there is none.
inline std::size_t process_status_bytes(std::string const& field) {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    std::size_t kilobytes = 0;
    if (name == field + ":" && status >> kilobytes) return kilobytes * 1024;
    std::getline(status, name);
  }
  return 0;
}

/// Resident memory now, and its peak so far.
inline std::size_t resident_bytes() { return process_status_bytes("VmRSS"); }
inline std::size_t peak_resident_bytes() { return process_status_bytes("VmHWM"); }

}  // namespace weft::report
