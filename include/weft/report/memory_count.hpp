// report/memory_count.hpp -- what this process holds.
// In: the kernel's account of the process. Out: bytes.
#pragma once

#include <cstddef>
#include <string>

namespace weft::inline v0::report {

/// A field of /proc/self/status in bytes (it is given in kB); 0 where there is none.
std::size_t process_status_bytes(std::string const& field);

/// Resident memory now, and its peak so far.
inline std::size_t resident_bytes() { return process_status_bytes("VmRSS"); }
inline std::size_t peak_resident_bytes() { return process_status_bytes("VmHWM"); }

}  // namespace weft::report

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/report/memory_count.ipp>
#endif
