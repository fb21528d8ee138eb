// data/src.hpp -- what the room data has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/data/ahead.ipp>
#include <weft/data/collate.ipp>
#include <weft/data/dataset.ipp>
#include <weft/data/loader_options.ipp>
#include <weft/data/move.ipp>
#include <weft/data/order.ipp>
#include <weft/data/position.ipp>
#include <weft/data/sampler.ipp>
#include <weft/data/text.ipp>
#include <weft/data/windows.ipp>
#include <weft/data/words.ipp>
