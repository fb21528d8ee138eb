// model/single_device.hpp -- the mechanism of one process on one device.
// In: a model. Out: the model, untouched.
#pragma once

#include <memory>

#include <torch/nn/module.h>

#include <weft/comm/mechanism_context.hpp>
#include <weft/model/engine.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/strategy/mechanism.hpp>
#include <weft/strategy/strategy.hpp>

namespace weft::inline v0 {

template <>
struct Mechanism<SingleDevice> : MechanismDefaults {
  static constexpr bool equal_gradients = true;

  template <class Derived>
  class Mixin {
   protected:
    friend Derived;
    Mixin() = default;
    std::shared_ptr<model::Engine> make_engine(torch::nn::Module&, model::ParameterTable&, MechanismContext const&) {
      return std::make_shared<model::Engine>();
    }
  };
};

}  // namespace weft
