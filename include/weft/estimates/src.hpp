// estimates/src.hpp -- what the room estimates has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/estimates/shape_of.ipp>
