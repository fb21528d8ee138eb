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
#include <torch/csrc/autograd/variable.h>

#include <weft/activation/recompute_scope.hpp>
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
  void add(at::Generator const& generator) {
    if (generator.defined() && std::find(all_.begin(), all_.end(), generator) == all_.end()) all_.push_back(generator);
  }
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
  AutocastState() : caches_(at::autocast::is_autocast_cache_enabled()) {
    for (auto const type : types)
      if (type == at::kCPU || at::hasCUDA())
        states_.push_back({type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
  }
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
  void set() const {
    for (auto const& state : states_) {
      at::autocast::set_autocast_enabled(state.type, state.enabled);
      at::autocast::set_autocast_dtype(state.type, state.dtype);
    }
  }
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
  void restore() const {
    at::NoGradGuard const no_grad;
    for (std::size_t i = 0; i < values_.size(); ++i)
      buffers_[i].variable_data().copy_(values_[i]);  // no new version, as far as autograd knows
  }

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
    explicit Forward(Recomputation const& call) : around_(std::exchange(innermost, &call)) {
      if (around_ == nullptr || (around_->what_.unit_said == nullptr) == (call.what_.unit_said == nullptr)) return;
      auto const& unit = call.what_.unit_said ? call.what_ : around_->what_;
      if (!unit.unit_said->exchange(true))
        TORCH_WARN("weft: ", unit.what, " is recomputed by ActivationCheckpointing, and weft::checkpoint is called ",
                   call.what_.unit_said ? "around" : "inside of",
                   " it: what both hold runs once more for each; keep one of them");
    }
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
    void call_pack_hook(at::Tensor const& tensor) override {
      index = call->saved_.size();
      auto const& version = torch::autograd::impl::version_counter(tensor);
      call->saved_.push_back(
          {tensor.sizes().vec(), tensor.scalar_type(), tensor.device(), version, version.current_version()});
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

  /// Each is let go as backward passes it; another pass over a kept graph runs the function once more. Nodes of one
  /// graph may run on the threads of several devices; see [Note: one re-run at a time].
  at::Tensor take(std::size_t index) {
    std::unique_lock const lock(reruns_, longest_wait);
    if (!lock.owns_lock())
      fail<Error>("weft: ", what_.what, ": the re-run of another call, on another thread, has not ended for ",
                  longest_wait.count(),
                  " s: does a checkpointed function go backward through another one on an accelerator?");
    auto const& meta = saved_[index];
    if (meta.version.current_version() != meta.saved_version)
      fail<Error>("weft: ", what_.what, ": the ", index + 1, ". tensor that forward saved for backward, ",
                  at::IntArrayRef(meta.sizes), " of ", meta.dtype,
                  ", was modified by an inplace operation since: it is at version ", meta.version.current_version(),
                  ", and was at ", meta.saved_version);
    if (index >= again_.size() || !again_[index].defined()) recompute();
    return std::exchange(again_[index], at::Tensor());
  }
  void recompute() {
    again_.clear();
    RandomState const here(random_.generators());
    AutocastState const autocast_here;
    BufferState const buffers_here(what_.buffers);
    struct Restore {
      ~Restore() {
        random.restore();
        autocast.restore();
        buffers.restore();
      }
      RandomState const& random;
      AutocastState const& autocast;
      BufferState const& buffers;
    } const restore{here, autocast_here, buffers_here};
    random_.restore();
    autocast_.restore_without_cache();
    at::AutoGradMode const with_gradients(true);
    RecomputeScope const rerun;
    try {
      SavedTensorHooks const collecting([this] { return std::make_unique<Collected>(*this); });
      run();
    } catch (Stop const& stop) {
      if (stop.who != this) throw;
    }
    if (again_.size() < saved_.size())
      fail<Error>("weft: ", what_.what, ": forward saved ", saved_.size(), " tensors for backward, its re-run ",
                  again_.size(),
                  ": the function must do the same when it is called again (a counter, a value read "
                  "from outside, a unit that was changed in between?)");
  }
  void collect(at::Tensor const& tensor) {
    if (again_.size() == saved_.size()) return;  // a function that isn't left by an exception
    auto const& before = saved_[again_.size()];
    if (tensor.sizes() != at::IntArrayRef(before.sizes) || tensor.scalar_type() != before.dtype ||
        tensor.device() != before.device)
      fail<Error>("weft: ", what_.what, ": the ", again_.size() + 1, ". tensor that forward saved for backward was ",
                  at::IntArrayRef(before.sizes), " of ", before.dtype, " on ", before.device,
                  ", that of its re-run is ", tensor.sizes(), " of ", tensor.scalar_type(), " on ", tensor.device(),
                  ": the function must do the same when it is called again");
    again_.push_back(tensor);
    if (again_.size() == saved_.size() && what_.stops_early) throw Stop{this};
  }

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
