// unit/reachable.ipp -- definitions of unit/reachable.hpp.
#pragma once

#include <weft/unit/reachable.hpp>

#include <string>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/unit/walk.hpp>

namespace weft::inline v0::unit {

WEFT_INLINE void check_reachable(torch::nn::Module& root) {
  auto const refuse_units = [](std::string const& path, torch::nn::Module& parent, std::string const& composite,
                               std::string const& instead) {
    for (auto const& child : parent.named_children())
      if (auto* unit = dynamic_cast<UnitBase*>(child.value().get()))
        fail<ConfigurationError>("weft: unit ", Site{join_path(path, child.key()), unit->unit_type()}.describe(),
                                 " is inside of ", composite, ", which calls it past its hooks: ", instead);
  };
  for_each_module(root, [&](std::string const& path, torch::nn::Module& module) {
    auto const refuse_layers = [&](torch::nn::ModuleList const& layers, std::string const& name) {
      if (!layers.is_empty())
        refuse_units(join_path(path, "layers"), *layers.ptr(), "torch::nn::" + name, "write weft::nn::" + name);
    };
    if (dynamic_cast<torch::nn::MultiheadAttentionImpl*>(&module))
      refuse_units(path, module, "MultiheadAttention",
                   "leave MultiheadAttention whole (it is a leaf), and hook weft::nn::MultiheadAttention itself");
    else if (dynamic_cast<torch::nn::TransformerEncoderLayerImpl*>(&module))
      refuse_units(path, module, "torch::nn::TransformerEncoderLayer", "write weft::nn::TransformerEncoderLayer");
    else if (dynamic_cast<torch::nn::TransformerDecoderLayerImpl*>(&module))
      refuse_units(path, module, "torch::nn::TransformerDecoderLayer", "write weft::nn::TransformerDecoderLayer");
    else if (auto* encoder = dynamic_cast<torch::nn::TransformerEncoderImpl*>(&module))
      refuse_layers(encoder->layers, "TransformerEncoder");
    else if (auto* decoder = dynamic_cast<torch::nn::TransformerDecoderImpl*>(&module))
      refuse_layers(decoder->layers, "TransformerDecoder");
  });
}

}  // namespace weft::unit
