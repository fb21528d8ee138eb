// activation/src.hpp -- what the room activation has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/activation/file_store.ipp>
#include <weft/activation/offload.ipp>
#include <weft/activation/recompute.ipp>
#include <weft/activation/saved_tensors.ipp>
