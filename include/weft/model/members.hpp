// model/members.hpp -- members that left the registry.
// In: a root module. Out: an error that names the first of LibTorch's layers that computes with another tensor than the
// one that is registered.
#pragma once

#include <torch/nn/module.h>

namespace weft::inline v0::model {

/// A module's members are handles beside the registry's: assigning one leaves the registered tensor where it was.
/// Whether other modules did so, nobody can tell from outside; weft itself never asks members, and a registered
/// parameter keeps its TensorImpl whatever becomes of its memory.
void check_members(torch::nn::Module& root);

}  // namespace weft::model

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/model/members.ipp>
#endif
