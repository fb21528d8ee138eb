// model/members.ipp -- definitions of model/members.hpp.
#pragma once

#include <weft/model/members.hpp>

#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/unit/walk.hpp>

namespace weft::inline v0::model {

WEFT_INLINE void check_member(std::string const& path, torch::nn::Module const& module, std::string const& name,
                              at::Tensor const& member) {
  bool registered = !member.defined();
  for (auto const& parameter : module.named_parameters(/*recurse=*/false))
    registered = member.defined() ? registered || parameter.value().is_same(member)
                                  : registered && parameter.key() != name;
  if (registered) return;
  fail<ConfigurationError>("weft: setup: the member ", name, " of ", path.empty() ? "the model" : path,
                           " is not the tensor that is registered as ", unit::join_path(path, name),
                           ": the module computes with the one, the other is trained, sharded and saved. Copy values "
                           "into it (torch::NoGradGuard guard; layer->",
                           name,
                           ".copy_(values)) instead of assigning the member; to tie weights, assign what "
                           "register_parameter(\"tied\", other) returns");
}

template <class... Layers>
void check_members_of(std::string const& path, torch::nn::Module& module) {
  auto const check = [&]<class Layer>(Layer const* layer) {
    if (!layer) return false;
    check_member(path, module, "weight", layer->weight);
    if constexpr (requires { layer->bias; }) check_member(path, module, "bias", layer->bias);
    return true;
  };
  static_cast<void>((check(dynamic_cast<Layers const*>(&module)) || ...));
}

WEFT_INLINE void check_members(torch::nn::Module& root) {
  using namespace torch::nn;
  unit::for_each_module(root, [](std::string const& path, Module& module) {
    check_members_of<LinearImpl, BilinearImpl, EmbeddingImpl, EmbeddingBagImpl, LayerNormImpl, GroupNormImpl,
                     BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl, InstanceNorm2dImpl,
                     InstanceNorm3dImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl, ConvTranspose2dImpl,
                     ConvTranspose3dImpl, PReLUImpl>(path, module);
  });
}

}  // namespace weft::model
