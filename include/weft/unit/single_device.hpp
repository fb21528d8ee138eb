// unit/single_device.hpp -- the mechanism of one process on one device.
// In: a model. Out: the model, untouched.
#pragma once

#include <memory>

#include <torch/nn/module.h>

#include <weft/strategy/mechanism.hpp>
#include <weft/strategy/strategy.hpp>
#include <weft/unit/engine.hpp>
#include <weft/unit/parameter_table.hpp>

namespace weft::inline v0 {

template <>
struct Mechanism<SingleDevice> {
  template <class Derived>
  class Mixin {
   protected:
    friend Derived;
    Mixin() = default;
    std::shared_ptr<unit::Engine> make_engine(torch::nn::Module&, unit::ParameterTable const&) { return std::make_shared<unit::Engine>(); }
  };
};

}  // namespace weft
