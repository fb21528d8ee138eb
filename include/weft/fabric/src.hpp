// fabric/src.hpp -- what the room fabric has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/fabric/optimizing.ipp>
#include <weft/fabric/seeds.ipp>
