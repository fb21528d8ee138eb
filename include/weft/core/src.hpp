// core/src.hpp -- what the room core has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/core/atomic_file.ipp>
#include <weft/core/seeds.ipp>

#ifdef WEFT_SEPARATE_COMPILATION
char const weft::include_weft_src_hpp_in_exactly_one_source_file = 0;
#endif
