// optim/src.hpp -- what the room optim has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/optim/clip.ipp>
#include <weft/optim/fused.ipp>
#include <weft/optim/lambda_lr.ipp>
#include <weft/optim/optimizer.ipp>
#include <weft/optim/sgd.ipp>
#include <weft/optim/state.ipp>
