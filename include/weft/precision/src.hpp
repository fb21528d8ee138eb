// precision/src.hpp -- what the room precision has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/precision/autocast.ipp>
#include <weft/precision/loss_scaler.ipp>
#include <weft/precision/rules.ipp>
