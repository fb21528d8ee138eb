// activation/recompute.hpp -- activation checkpointing: a part of forward that is run again in backward instead of
// being kept.
// In: a function and its arguments. Out: what it returns; of its graph the arguments alone are kept until backward
// (Chen et al. 2016).
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
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
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <weft/activation/saved_tensors.hpp>
#include <weft/core/error.hpp>
#include <weft/core/visit.hpp>

namespace weft::inline v0 {
namespace activation::detail {

/// Generators: of the CPU, of the devices that arguments lie on, and those among the arguments.
class GeneratorsInUse {
 public:
  void add(at::Device device) {
    if (device == at::kCPU || device.has_index()) add(at::globalContext().defaultGenerator(device));
  }
  void add(at::Generator const& generator);
  std::vector<at::Generator> const& all() const { return all_; }

 private:
  std::vector<at::Generator> all_;
};

/// Random numbers as they were.
class RandomState {
 public:
  explicit RandomState(std::vector<at::Generator> const& generators) {
    for (auto generator : generators) {
      std::lock_guard const lock(generator.mutex());
      states_.emplace_back(generator, generator.get_state());
    }
  }
  void restore() const {
    for (auto [generator, state] : states_) {
      std::lock_guard const lock(generator.mutex());
      generator.set_state(state);
    }
  }
  std::vector<at::Generator> generators() const {
    std::vector<at::Generator> all;
    for (auto const& entry : states_) all.push_back(entry.first);
    return all;
  }

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// Autocast as it was. Without its cache of cast weights, which would outlive the optimizer's step.
class AutocastState {
 public:
  AutocastState();
  void restore() const {
    set();
    at::autocast::set_autocast_cache_enabled(caches_);
  }
  void restore_without_cache() const {
    set();
    at::autocast::set_autocast_cache_enabled(false);
  }

 private:
  static constexpr at::DeviceType types[] = {at::kCPU, at::kCUDA};
  struct State {
    at::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  void set() const;
  std::vector<State> states_;
  bool caches_;
};

/// Buffers as they were, after a re-run: BatchNorm's would move twice.
class BufferState {
 public:
  explicit BufferState(std::vector<at::Tensor> const& buffers) : buffers_(buffers) {
    at::NoGradGuard const no_grad;
    for (auto const& buffer : buffers_) values_.push_back(buffer.detach().clone());
  }
  void restore() const;

 private:
  std::vector<at::Tensor> const& buffers_;
  std::vector<at::Tensor> values_;
};

/// What is recomputed, and for whom.
struct Recomputed {
  std::string what;
  std::vector<at::Tensor> buffers{};  // that the function may change
  bool stops_early = true;
  std::shared_ptr<std::atomic<bool>>
      unit_said{};  // of a unit that a policy recomputes: whether it was said that weft::checkpoint does, too
};

/// One checkpointed call. Its graph's saved tensors are numbers into what a re-run saves.
///
/// [Note: one re-run at a time] A re-run puts generators back to where they were in forward, and after it to where they
/// are. A process has most of them once, so re-runs on several threads would draw each other's numbers: they wait for
/// each other. One inside of another is on the same thread, unless a function goes backward itself, through a
/// checkpointed call, on an accelerator, whose nodes have a thread of their own: that could never end, and so waiting
/// does.
///
/// [Note: the re-run stops early] It throws as soon as it has saved what forward did: what forward computed after that
/// was for its outputs alone. What is thrown is no std::exception, so that functions which catch those let it pass.
class Recomputation final : public std::enable_shared_from_this<Recomputation> {
 public:
  Recomputation(Recomputed what, GeneratorsInUse const& generators)
      : what_(std::move(what)), random_(generators.all()) {}

  std::string const& what() const { return what_.what; }
  /// Runs the function under gradients; set once forward's arguments are saved.
  std::function<void()> run{};

  SavedTensorHooks forget() {
    return SavedTensorHooks([self = shared_from_this()] { return std::make_unique<Forgotten>(self); });
  }

  /// While the function runs for the first time.
  class [[nodiscard]] Forward {
   public:
    explicit Forward(Recomputation const& call);
    ~Forward() { innermost = around_; }
    Forward(Forward const&) = delete;
    Forward& operator=(Forward const&) = delete;

   private:
    [[gnu::visibility("default")]] static inline thread_local Recomputation const* innermost = nullptr;
    Recomputation const* around_;
  };

 private:
  struct Stop {
    Recomputation const* who;
  };
  /// Forward: only a number is kept.
  struct Forgotten final : torch::autograd::SavedVariableHooks {
    explicit Forgotten(std::shared_ptr<Recomputation> it) : call(std::move(it)) {}
    void call_pack_hook(at::Tensor const& tensor) override;
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

  /// Each is let go as backward passes it; another pass over a kept graph runs the function once more. Nodes of one
  /// graph may run on the threads of several devices; see [Note: one re-run at a time].
  at::Tensor take(std::size_t index);
  void recompute();
  void collect(at::Tensor const& tensor);

  struct Meta {
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
    at::Device device;
    c10::VariableVersion version;  // outlives the tensor; autograd's own check has nothing to look at
    uint32_t saved_version;
  };
  Recomputed const what_;
  RandomState const random_;
  AutocastState const autocast_{};
  static constexpr std::chrono::seconds longest_wait{600};
  [[gnu::visibility("default")]] static inline std::recursive_timed_mutex reruns_;
  std::vector<Meta> saved_;
  std::vector<at::Tensor> again_;
};

/// An argument as the call keeps it: tensors in it as a node would save them, so that a checkpointed call inside of
/// another keeps none.
template <class T>
class KeptArgument {
  static constexpr bool may_hold_tensors = is_visitable_v<at::Tensor, T> && !core::Leafless<T>;

 public:
  explicit KeptArgument(T const& it) : value_(it) {
    if constexpr (may_hold_tensors) {
      std::vector<at::Tensor const*> originals;
      for_each_leaf<at::Tensor>(it, [&](at::Tensor const& tensor) { originals.push_back(&tensor); });
      std::vector<at::Tensor*> copies;
      bool owns = true;
      for_each_leaf<at::Tensor>(value_, [&]<class Leaf>(Leaf& tensor) {
        if constexpr (std::is_const_v<Leaf>)
          fail<ConfigurationError>(
              "weft: recomputation: an argument refers to tensors that it does not own, such as an ArrayRef: they may "
              "be gone when backward runs the function again; pass a container");
        else
          owns = owns && &tensor != originals[copies.size()], copies.push_back(&tensor);
      });
      if (!owns) return;  // behind a shared pointer, which is kept as it is
      tensors_.reserve(copies.size());
      for (auto* const tensor : copies) {
        bool const can_be_saved = tensor->defined() && !tensor->is_inference();
        tensors_.push_back({can_be_saved ? at::Tensor() : *tensor,
                            torch::autograd::SavedVariable(can_be_saved ? *tensor : at::Tensor(), /*is_output=*/false),
                            can_be_saved && tensor->requires_grad()});
        tensor->reset();
      }
    }
  }
  T get(std::string const& what) const {
    T value = value_;
    if constexpr (may_hold_tensors) {
      auto saved = tensors_.begin();
      if (saved != tensors_.end())
        for_each_leaf<at::Tensor>(value, [&]<class Leaf>(Leaf& tensor) {
          if constexpr (!std::is_const_v<Leaf>) tensor = saved->get(what), ++saved;
        });
    }
    return value;
  }

 private:
  struct Kept {
    at::Tensor get(std::string const& what) const {
      try {
        auto const tensor = saved.unpack();
        return tensor.defined() ? tensor.detach().set_requires_grad(requires_grad) : as_it_is;
      } catch (c10::Error const& error) {
        std::string const text = error.what_without_backtrace();
        fail<Error>("weft: ", what,
                    ": an argument cannot be passed to its re-run as it was: ", text.substr(0, text.find(". Hint")));
      }
    }
    at::Tensor as_it_is;  // undefined, or of inference, which nothing saves
    torch::autograd::SavedVariable saved;
    bool requires_grad;
  };
  T value_;
  std::vector<Kept> tensors_;
};

/// Passes on what was kept as it was passed at first.
template <class Argument, class Kept>
decltype(auto) as_passed(Kept& kept) {
  if constexpr (std::is_same_v<Kept, std::remove_cvref_t<Argument>>)
    return static_cast<Argument&&>(kept);
  else
    return std::move(kept);  // an array, which was kept as a pointer
}

/// Whether a function is declared noexcept, which a call is not where copying an argument may throw. Of one operator()
/// alone: others have no type.
template <class T>
inline constexpr bool is_noexcept_member_v = false;
template <class R, class C, class... A>
inline constexpr bool is_noexcept_member_v<R (C::*)(A...) noexcept> = true;
template <class R, class C, class... A>
inline constexpr bool is_noexcept_member_v<R (C::*)(A...) const noexcept> = true;
template <class T>
inline constexpr bool is_noexcept_function_v = false;
template <class R, class... A>
inline constexpr bool is_noexcept_function_v<R(A...) noexcept> = true;
template <class F>
consteval bool is_noexcept() {
  if constexpr (requires { &F::operator(); })
    return is_noexcept_member_v<decltype(&F::operator())>;
  else if constexpr (std::is_pointer_v<F>)
    return is_noexcept_function_v<std::remove_pointer_t<F>>;
  return false;
}

template <class F, class... Arguments>
auto recomputed(Recomputed what, F f, Arguments&&... arguments) {
  if constexpr (!(std::is_copy_constructible_v<std::decay_t<Arguments>> && ...)) {
    fail<ConfigurationError>("weft: ", what.what,
                             ": one of its arguments cannot be copied, so it cannot be passed again in backward; pass "
                             "a tensor, a value or a shared pointer");
    return f(std::forward<Arguments>(arguments)...);
  } else {
    GeneratorsInUse generators;
    generators.add(at::kCPU);
    auto const add_generators = [&]<class T>(T const& argument) {
      if constexpr (is_visitable_v<at::Tensor, T>)
        for_each_leaf<at::Tensor>(argument, [&](at::Tensor const& tensor) {
          if (tensor.defined()) generators.add(tensor.device());
        });
      if constexpr (std::is_convertible_v<T const&, at::Generator>) generators.add(argument);
    };
    (add_generators(arguments), ...);
    what.stops_early = what.stops_early && !is_noexcept<F>() && !noexcept(f(std::forward<Arguments>(arguments)...));
    auto const call = std::make_shared<Recomputation>(std::move(what), generators);
    auto kept = std::make_shared<std::tuple<KeptArgument<std::decay_t<Arguments>>...>>(
        KeptArgument<std::decay_t<Arguments>>(arguments)...);
    auto shared = std::make_shared<F>(std::move(f));
    call->run = [shared, kept, self = call.get()] {
      std::apply(
          [&](auto const&... argument) {
            [&](auto... values) {
              static_cast<void>((*shared)(as_passed<Arguments>(values)...));
            }(argument.get(self->what())...);
          },
          *kept);
    };
    auto const forgetting = call->forget();
    Recomputation::Forward const forward(*call);
    return (*shared)(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace activation::detail

/// f(args...), whose activations are computed again in backward: between the two only its arguments are kept. f is
/// called twice and must do the same both times; random numbers and autocast are as they were. It may return anything,
/// call units and checkpoint itself, and change neither its arguments nor what it captures in place; no function that
/// it calls may be noexcept, for the re-run ends by an exception (f itself may). A generator of its own has to be an
/// argument. Buffers that it changes (BatchNorm's) are changed twice; those of a unit under ActivationCheckpointing are
/// not. Without gradients it is just called. Errors: a re-run that saves other tensors than forward did.
template <class F, class... Args>
auto checkpoint(F f, Args const&... args) {
  if (!at::GradMode::is_enabled()) return f(args...);
  return activation::detail::recomputed({.what = "checkpoint"}, std::move(f), args...);
}

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/activation/recompute.ipp>
#endif
