// unit/src.hpp -- what the room unit has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/unit/activity.ipp>
#include <weft/unit/backward_hook.ipp>
#include <weft/unit/gradient_hook.ipp>
#include <weft/unit/hooks.ipp>
#include <weft/unit/names.ipp>
#include <weft/unit/reachable.ipp>
