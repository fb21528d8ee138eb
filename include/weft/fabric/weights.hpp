// fabric/weights.hpp -- the weights of a set-up model as a file.
// In: a Fabric and its models. Out: one safetensors file of whole parameters and buffers, whatever the strategy, and
// back.
#pragma once

#include <exception>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include <torch/nn/module.h>

#include <weft/checkpoints/weights.hpp>
#include <weft/core/diagnose.hpp>
#include <weft/core/error.hpp>
#include <weft/model/model.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/precision/autocast.hpp>

namespace weft::inline v0::fabric {

/// The part of Fabric that writes and reads weights.
template <class Derived>
class Weights {
 public:
  /// Parameters and buffers as one safetensors file, written by rank 0; with a filter those that it wants. Collective.
  template <class M>
  void save_weights(std::filesystem::path const& path, Model<M> const& model,
                    checkpoints::SaveOptions const& options = {}) {
    std::string error;
    auto const whole = fabric().summon_full_params(model);
    if (fabric().is_global_zero()) try {
        checkpoints::save_weights(path.string(), weights_of(model.table(), model.module()), options);
      } catch (std::exception const& failure) {
        error = failure.what();
      }
    error = fabric().broadcast(error);  // all ranks learn of it, and nobody goes on before the file is there
    if (!error.empty()) fail<CheckpointError>(error);
  }
  template <class M>
    requires(!is_model_v<M>)
  void save_weights(std::filesystem::path const&, M const&, checkpoints::SaveOptions const& = {}) {
    static_assert(core::always_false_v<M>, "weft: save_weights(path, model): pass a model that setup returned");
  }
  /// Fills the model from such a file, on every rank. Names, shapes and dtypes must match unless the options say
  /// otherwise.
  template <class M>
  checkpoints::LoadReport load_weights(std::filesystem::path const& path, Model<M> const& model,
                                       checkpoints::LoadOptions const& options = {}) {
    auto const whole = fabric().summon_full_params(model, /*writeback=*/true);
    precision::forget_casts();  // inside of fabric.autocast()
    return checkpoints::load_weights(weights_of(model.table(), model.module()), path.string(), options);
  }
  template <class M>
    requires(!is_model_v<M>)
  checkpoints::LoadReport load_weights(std::filesystem::path const&, M const&, checkpoints::LoadOptions const& = {}) {
    static_assert(core::always_false_v<M>,
                  "weft: load_weights(path, model): pass a model that setup returned; a module that is not set up "
                  "takes load_raw");
    return {};
  }
  /// Fills a module that is not set up, on the ranks that call it; also before launch().
  template <class M>
  static checkpoints::LoadReport load_raw(std::filesystem::path const& path, M const& module,
                                          checkpoints::LoadOptions const& options = {}) {
    constexpr bool is_module = !std::is_void_v<model::impl_of_t<M>>;
    static_assert(is_module,
                  "weft: load_raw(path, module): pass a module holder (torch::nn::Linear, WEFT_MODULE's type) or a "
                  "std::shared_ptr to a module; a model that setup returned takes load_weights");
    if constexpr (is_module) {
      auto const pointer = model::shared_module("load_raw", module);
      return checkpoints::load_weights(weights_of(model::ParameterTable::of(*pointer), *pointer), path.string(),
                                       options);
    } else {
      return {};
    }
  }

 private:
  friend Derived;
  Weights() = default;
  Derived& fabric() { return static_cast<Derived&>(*this); }

  static std::vector<checkpoints::Weight> weights_of(model::ParameterTable const& table,
                                                     torch::nn::Module const& module) {
    std::vector<checkpoints::Weight> weights;
    for (auto const& row : table.rows()) weights.push_back({row.name, row.aliases, row.tensor});
    for (auto const& buffer : module.named_buffers())
      if (buffer.value().defined()) weights.push_back({buffer.key(), {}, buffer.value()});
    return weights;
  }
};

}  // namespace weft::fabric
