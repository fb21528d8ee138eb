// nn/src.hpp -- what the room nn has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/nn/rms_norm.ipp>
#include <weft/nn/sync_batch_norm.ipp>
#include <weft/nn/transformer.ipp>
#include <weft/nn/transformer_coder.ipp>
#include <weft/nn/transformer_layer.ipp>
