// data_parallel/data_parallel.hpp -- the mechanism of DataParallel: one process, several devices, the batch cut among
// them.
// In: a model on the first device and a batch. Out: the outputs of one device with the whole batch, computed in parts;
// gradients meet at the model.
//
// On<Cpu> with devices = n makes n replicas on the CPU: the same program, to try out and to test.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <weft/comm/mechanism_context.hpp>
#include <weft/data_parallel/replicas.hpp>
#include <weft/data_parallel/scatter.hpp>
#include <weft/model/engine.hpp>
#include <weft/model/model.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/strategy/mechanism.hpp>
#include <weft/strategy/strategy.hpp>
#include <weft/unit/hooks.hpp>

namespace weft::inline v0 {
namespace data_parallel {

/// A set-up model whose calls run on all devices of the process.
template <class M>
class ReplicatedModel : public Model<M>, public model::NamedSteps<ReplicatedModel<M>> {
  using Steps = model::NamedSteps<ReplicatedModel<M>>;

 public:
  using Impl = typename Model<M>::Impl;
  using Model<M>::Model;
  using Steps::predict_step, Steps::test_step, Steps::training_step, Steps::validation_step;  // on all devices

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    return enter(
        [](Impl& replica, auto&&... parts) -> decltype(auto) {
          if constexpr (std::is_base_of_v<unit::UnitBase, Impl>)
            return replica.unit_call(std::forward<decltype(parts)>(parts)...);  // fills in forward's default arguments
          else
            return replica.forward(std::forward<decltype(parts)>(parts)...);
        },
        std::forward<Arguments>(arguments)...);
  }
  template <auto Method, class... Arguments>
  auto call(Arguments&&... arguments) {
    if constexpr (Model<M>::template check_method<Method>())
      return enter(
          [](Impl& replica, auto&&... parts) -> decltype(auto) {
            return (replica.*Method)(std::forward<decltype(parts)>(parts)...);
          },
          std::forward<Arguments>(arguments)...);
    else
      return at::Tensor();  // refused above; not void, which would be a second error
  }

  template <class Call, class... Arguments>
  auto enter(Call const& call, Arguments&&... arguments) {
    (static_cast<void>(check_argument<std::decay_t<model::PlainType<Arguments>>>()), ...);
    return model::run_forward(
        *this->state(), [&](auto&&... whole) { return on_devices(call, whole...); },
        std::forward<Arguments>(arguments)...);
  }

 private:
  template <class Call, class... Arguments>
  auto on_devices(Call const& call, Arguments const&... arguments) {
    auto const& devices = this->state()->session->devices;
    std::vector<Cut> cuts;
    std::size_t index = 0;
    (find_cuts(cuts, index++, arguments), ...);
    auto const division = division_of(cuts, static_cast<int>(devices.size()));
    auto const run = [&](Impl& replica, int part) -> decltype(auto) {
      return call(replica, part_of<std::decay_t<Arguments const&>>(cuts, arguments, division, part,
                                                                   devices[static_cast<std::size_t>(part)])...);
    };
    using Result = std::decay_t<decltype(run(this->module(), 0))>;
    auto const replicas = clones(division.num_parts);
    auto const replica = [&](int part) -> Impl& {
      return part == 0 ? this->module() : *replicas[static_cast<std::size_t>(part - 1)];
    };
    if constexpr (std::is_void_v<Result>) {
      run_parts(devices, division.num_parts, [&](int part) { run(replica(part), part); });
    } else {
      std::vector<std::optional<Result>> results(static_cast<std::size_t>(division.num_parts));
      run_parts(devices, division.num_parts,
                [&](int part) { results[static_cast<std::size_t>(part)].emplace(run(replica(part), part)); });
      return division.num_parts == 1 ? std::move(*results[0]) : gathered(results, devices.front());
    }
  }

  std::vector<std::shared_ptr<Impl>> clones(int num_parts) {
    std::vector<std::shared_ptr<Impl>> replicas;
    for (int part = 1; part < num_parts; ++part) {
      auto const clone = std::dynamic_pointer_cast<Impl>(
          replica_of(this->module(), this->state()->session->devices[static_cast<std::size_t>(part)]));
      if (!clone)
        fail<ConfigurationError>(
            "weft: DataParallel: the clone of ", this->module().name(),
            " is of another class; derive the class itself from torch::nn::Cloneable, or override clone() in it");
      replicas.push_back(clone);
    }
    return replicas;
  }
};

}  // namespace data_parallel

template <class M>
inline constexpr bool is_model_v<data_parallel::ReplicatedModel<M>> = true;

template <>
struct Mechanism<DataParallel> : MechanismDefaults {
  static constexpr bool equal_gradients = true;

  template <class M>
  using Wrapped = data_parallel::ReplicatedModel<M>;

  template <class Derived>
  class Mixin {
   protected:
    friend Derived;
    Mixin() = default;

    std::shared_ptr<model::Engine> make_engine(torch::nn::Module& model, model::ParameterTable&,
                                               MechanismContext const& context) {
      auto const& devices = context.session.devices;
      if (devices.size() > 1)
        static_cast<void>(data_parallel::replica_of(
            model, devices.front()));  // a model that cannot be cloned is refused here, not in its first step
      data_parallel::recommend_ddp(devices.size());
      return std::make_shared<model::Engine>();
    }
  };
};

}  // namespace weft
