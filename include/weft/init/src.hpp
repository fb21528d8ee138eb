// init/src.hpp -- what the room init has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/init/deferred_init.ipp>
#include <weft/init/deferred_operations.ipp>
#include <weft/init/deferred_storage.ipp>
#include <weft/init/operation_call.ipp>
