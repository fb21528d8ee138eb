// unit/reachable.hpp -- units that would never be entered.
// In: a root module. Out: an error that names the first unit which one of LibTorch's composites calls past its hooks.
#pragma once

#include <torch/nn/module.h>

#include <weft/unit/hooks.hpp>

namespace weft::inline v0::unit {

// LibTorch's own composites hold their parts by the base's type (or cast to it) and call its forward. What they hold as
// an AnyModule (the norm of a TransformerEncoder, custom_encoder) is entered, and so is whatever lies inside of a part
// that isn't.
void check_reachable(torch::nn::Module& root);

}  // namespace weft::unit

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/unit/reachable.ipp>
#endif
