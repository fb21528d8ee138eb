// fabric/weights.hpp -- the weights of a set-up model as a file.
// In: a Fabric and its models. Out: one safetensors file of whole parameters and buffers, whatever the strategy, and back.
#pragma once

#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include <weft/checkpoint/weights.hpp>
#include <weft/core/error.hpp>
#include <weft/unit/model.hpp>

namespace weft::fabric {

/// The part of Fabric that writes and reads weights.
template <class Derived>
class Weights {
 public:
  /// Parameters and buffers as one safetensors file, written by rank 0. Collective.
  template <class M>
  void save_weights(std::filesystem::path const& path, Model<M> const& model) {
    std::string error;
    auto const whole = fabric().summon_full_params(model);
    if (fabric().is_global_zero()) try {
        files::save_weights(path.string(), weights_of(model));
      } catch (std::exception const& failure) {
        error = failure.what();
      }
    error = fabric().broadcast(error);  // all ranks learn of it, and nobody goes on before the file is there
    if (!error.empty()) fail<CheckpointError>(error);
  }
  /// Fills the model from such a file, on every rank. Names, shapes and dtypes must match unless the options say otherwise.
  template <class M>
  files::LoadReport load_weights(std::filesystem::path const& path, Model<M> const& model, files::LoadOptions options = {}) {
    auto const whole = fabric().summon_full_params(model, /*writeback=*/true);
    return files::load_weights(weights_of(model), path.string(), options);
  }

 private:
  friend Derived;
  Weights() = default;
  Derived& fabric() { return static_cast<Derived&>(*this); }

  template <class M>
  static std::vector<files::Weight> weights_of(Model<M> const& model) {
    std::vector<files::Weight> weights;
    for (auto const& row : model.table().rows()) weights.push_back({row.name, row.aliases, row.tensor});
    for (auto const& buffer : model.module().named_buffers())
      if (buffer.value().defined()) weights.push_back({buffer.key(), {}, buffer.value()});
    return weights;
  }
};

}  // namespace weft::fabric
