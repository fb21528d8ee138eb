// unit/recompute.hpp -- activation checkpointing: a part of forward that is run again in backward instead of being kept.
// In: a function and its arguments. Out: what it returns; of its graph the arguments alone are kept until backward (Chen et al. 2016).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <weft/core/error.hpp>
#include <weft/unit/saved_tensors.hpp>

namespace weft {
namespace unit::detail {

/// Random numbers as they were. Of the CPU, and of the devices that arguments lie on.
class RandomState {
 public:
  explicit RandomState(std::vector<at::Device> const& devices) {
    keep(at::kCPU);
    for (auto const& device : devices)
      if (device != at::kCPU && device.has_index()) keep(device);
  }
  void restore() const {
    for (auto [generator, state] : states_) {
      std::lock_guard const lock(generator.mutex());
      generator.set_state(state);
    }
  }
  std::vector<at::Device> devices() const {
    std::vector<at::Device> all;
    for (auto const& entry : states_) all.push_back(entry.first.device());
    return all;
  }

 private:
  void keep(at::Device device) {
    for (auto const& entry : states_)
      if (entry.first.device() == device) return;
    auto generator = at::globalContext().defaultGenerator(device);
    std::lock_guard const lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// Autocast as it was, for a scope.
class AutocastState {
 public:
  AutocastState() {
    for (auto const type : types)
      if (type == at::kCPU || at::hasCUDA()) states_.push_back({type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
    caches_ = at::autocast::is_autocast_cache_enabled();
  }
  void restore() const {
    for (auto const& state : states_) {
      at::autocast::set_autocast_enabled(state.type, state.enabled);
      at::autocast::set_autocast_dtype(state.type, state.dtype);
    }
    at::autocast::set_autocast_cache_enabled(caches_);
  }

 private:
  static constexpr at::DeviceType types[] = {at::kCPU, at::kCUDA};
  struct State {
    at::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<State> states_;
  bool caches_ = true;
};

/// One checkpointed call. Its graph's saved tensors are numbers into what a re-run saves.
///
/// [Note: the re-run stops early] It throws as soon as it has saved what forward did: what forward computed after that was for its outputs
/// alone. What is thrown is no std::exception, so that functions which catch those let it pass.
class Recomputation final : public std::enable_shared_from_this<Recomputation> {
 public:
  Recomputation(std::string what, std::vector<at::Device> const& devices) : what_(std::move(what)), random_(devices) {}

  /// Runs the function under gradients; set once forward's arguments are saved.
  std::function<void()> run{};

  SavedTensorHooks forget() {
    return SavedTensorHooks([self = shared_from_this()] { return std::make_unique<Forgotten>(self); });
  }

 private:
  struct Stop {
    Recomputation const* who;
  };
  /// Forward: only a number is kept.
  struct Forgotten final : torch::autograd::SavedVariableHooks {
    explicit Forgotten(std::shared_ptr<Recomputation> it) : call(std::move(it)) {}
    void call_pack_hook(at::Tensor const& tensor) override {
      index = call->saved_.size();
      call->saved_.push_back({tensor.sizes().vec(), tensor.scalar_type(), tensor.device()});
    }
    at::Tensor call_unpack_hook() override { return call->take(index); }
    std::shared_ptr<Recomputation> call;
    std::size_t index = 0;
  };
  /// Re-run: what forward would have kept. The graph of the re-run itself goes right after it.
  struct Collected final : torch::autograd::SavedVariableHooks {
    explicit Collected(Recomputation& it) : call(it) {}
    void call_pack_hook(at::Tensor const& tensor) override {
      kept = tensor.detach();  // else what is collected would hold the re-run's graph
      call.collect(kept);
    }
    at::Tensor call_unpack_hook() override { return kept; }
    Recomputation& call;
    at::Tensor kept;
  };

  /// Each is let go as backward passes it; another pass over a kept graph runs the function once more.
  at::Tensor take(std::size_t index) {
    if (index >= again_.size() || !again_[index].defined()) run_again();
    return std::exchange(again_[index], at::Tensor());
  }
  void run_again() {
    again_.clear();
    RandomState const here(random_.devices());
    AutocastState const autocast_here;
    struct Restore {
      ~Restore() {
        random.restore();
        autocast.restore();
      }
      RandomState const& random;
      AutocastState const& autocast;
    } const restore{here, autocast_here};
    random_.restore();
    autocast_.restore();
    at::AutoGradMode const with_gradients(true);
    try {
      SavedTensorHooks const collecting([this] { return std::make_unique<Collected>(*this); });
      run();
    } catch (Stop const& stop) {
      if (stop.who != this) throw;
    }
    if (again_.size() < saved_.size())
      fail<Error>("weft: ", what_, ": forward saved ", saved_.size(), " tensors for backward, its re-run ", again_.size(), ": the function must do the same when it is called again (a counter, a value read "
                  "from outside, a unit that was changed in between?)");
  }
  void collect(at::Tensor const& tensor) {
    auto const& before = saved_[again_.size()];
    if (tensor.sizes() != at::IntArrayRef(before.sizes) || tensor.scalar_type() != before.dtype || tensor.device() != before.device)
      fail<Error>("weft: ", what_, ": the ", again_.size() + 1, ". tensor that forward saved for backward was ", at::IntArrayRef(before.sizes), " of ", before.dtype, " on ", before.device, ", that of its re-run is ",
                  tensor.sizes(), " of ", tensor.scalar_type(), " on ", tensor.device(), ": the function must do the same when it is called again");
    again_.push_back(tensor);
    if (again_.size() == saved_.size()) throw Stop{this};
  }

  struct Meta {
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
    at::Device device;
  };
  std::string what_;
  RandomState const random_;
  AutocastState const autocast_{};
  std::vector<Meta> saved_;
  std::vector<at::Tensor> again_;
};

/// An argument as the call keeps it: tensors as a node would save them, so that a checkpointed call inside of another keeps none.
template <class T>
struct KeptArgument {
  explicit KeptArgument(T const& it) : value(it) {}
  T const& get() const { return value; }
  T value;
};
template <>
struct KeptArgument<at::Tensor> {
  explicit KeptArgument(at::Tensor const& it) : saved(it, /*is_output=*/false), requires_grad(it.defined() && it.requires_grad()) {}
  at::Tensor get() const {
    auto const tensor = saved.unpack();
    return tensor.defined() ? tensor.detach().set_requires_grad(requires_grad) : tensor;
  }
  torch::autograd::SavedVariable saved;
  bool requires_grad;
};

template <class F, class... Args>
auto recomputed(std::string what, F f, Args const&... args) {
  std::vector<at::Device> devices;
  (
      [&] {
        if constexpr (std::is_same_v<Args, at::Tensor>)
          if (args.defined()) devices.push_back(args.device());
      }(),
      ...);
  auto const call = std::make_shared<Recomputation>(std::move(what), devices);
  auto kept = std::make_shared<std::tuple<KeptArgument<Args>...>>(KeptArgument<Args>(args)...);
  auto shared = std::make_shared<F>(std::move(f));
  call->run = [shared, kept] { std::apply([&](auto const&... argument) { static_cast<void>((*shared)(argument.get()...)); }, *kept); };
  auto const forgetting = call->forget();
  return (*shared)(args...);
}

}  // namespace unit::detail

/// f(args...), whose activations are computed again in backward: between the two only the arguments that are tensors are kept (others by value).
/// f is called twice and must do the same both times; random numbers and autocast are as they were. It may return anything, call
/// checkpoint itself, and change none of its arguments in place. Without gradients it is just called. Errors: a re-run that saves other
/// tensors than forward did.
template <class F, class... Args>
auto checkpoint(F f, Args const&... args) {
  if (!at::GradMode::is_enabled()) return f(args...);
  return unit::detail::recomputed("checkpoint", std::move(f), args...);
}

}  // namespace weft
