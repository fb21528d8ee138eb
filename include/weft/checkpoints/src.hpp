// checkpoints/src.hpp -- what the room checkpoints has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/checkpoints/safetensors.ipp>
#include <weft/checkpoints/safetensors_header.ipp>
#include <weft/checkpoints/weights.ipp>
