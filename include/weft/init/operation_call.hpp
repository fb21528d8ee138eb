// init/operation_call.hpp -- operations in a scope that builds modules, one by one.
// In: LibTorch's operations with their arguments, as the scope says. Out: done, done elsewhere, or deferred, with
// results that have no memory.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/variable.h>

#include <weft/core/error.hpp>
#include <weft/init/deferred_operations.hpp>

namespace weft::inline v0 {

/// How modules are built in a scope. What is not said is as in the scope around it, at last as in LibTorch.
struct Init {
  bool deferred = true;  // false: at once
  bool empty = false;  // nothing is drawn: what random numbers would have gone into has no values, and is loaded later.
                       // Fills and tables are made
  std::optional<at::Device> device{};     // of tensors for which the module says none
  std::optional<at::ScalarType> dtype{};  // of floating-point tensors for which the module says none
};

namespace init::detail {

struct InitScope {
  Init how;
  std::shared_ptr<DeferredOperations> operations;
  InitScope* around = nullptr;
};
/// The innermost of this thread.
[[gnu::visibility("default")]] inline InitScope*& init_scope() {
  static auto first = +[]() -> InitScope*& {  // see [Note: one in a process]
    static constinit thread_local InitScope* scope = nullptr;
    return scope;
  };
  return first();
}

/// An operation and what is on the stack for it.
class InitCall {
 public:
  InitCall(c10::OperatorHandle const& op, torch::jit::Stack& stack);

  /// See Init::device and Init::dtype.
  void redirect(Init const& how);
  /// Without a scope nothing gives values to what waits, so only what looks at shapes alone may go on.
  void refuse_without_values() const;
  void run(InitScope& scope);

 private:
  static constexpr std::array overwriting{"aten::fill_",      "aten::zero_",        "aten::copy_",
                                          "aten::normal_",    "aten::uniform_",     "aten::random_",
                                          "aten::bernoulli_", "aten::exponential_", "aten::log_normal_",
                                          "aten::cauchy_",    "aten::geometric_"};
  static constexpr std::array empties{"aten::empty",      "aten::empty_strided", "aten::empty_permuted",
                                      "aten::empty_like", "aten::new_empty",     "aten::new_empty_strided"};

  static constexpr std::string_view converts = "aten::_to_copy";

  std::string_view name() const { return schema_.name(); }
  c10::IValue& argument(std::size_t i) { return stack_[first_ + i]; }
  bool draws() const { return generator_ || op_.hasTag(at::Tag::nondeterministic_seeded); }
  bool is_factory() const { return device_ && written_.empty() && read_.empty(); }
  bool makes_floating_point();

  /// [Note: filled by hand] torch::tensor(values) asks for memory and writes into it by a pointer, below autograd.
  /// (at::tensor(values) looks like any other at::empty.)
  bool is_filled_by_hand() const;
  /// Autograd's graph is of values, so what it would record is computed. But module.to(dtype) converts with gradients
  /// on, and then takes the data only: a conversion is deferred, and refuses a backward pass.
  bool is_recorded_by_autograd() const;
  /// Which memory a tensor lies in, and how much of it.
  bool changes_memory() const { return name().starts_with("aten::resize") || name().starts_with("aten::set_"); }
  bool is_cast() const;
  bool is_deferrable() const {
    return !pins_ && !is_filled_by_hand() && !is_recorded_by_autograd() && !changes_memory() && !is_cast();
  }
  bool is_view() const;

  /// What waits comes first.
  void read_and_call(InitScope& scope);

  /// An operation in place.
  void change(InitScope& scope);

  /// An operation with results of its own.
  void make(InitScope& scope);

  /// The shapes of the results. Nothing: this operation does not say them without values; `has_failed`: nor would it
  /// with these arguments.
  std::optional<torch::jit::Stack> on_meta(bool& has_failed);

  std::function<void(torch::jit::Stack&)> call() const {
    return [op = op_](torch::jit::Stack& stack) { op.callBoxed(&stack); };
  }
  torch::jit::Stack take_arguments();
  std::optional<at::Generator> generator(at::Device device) const;
  at::Device device_of_results();

  c10::OperatorHandle const& op_;
  c10::FunctionSchema const& schema_;
  torch::jit::Stack& stack_;
  torch::jit::Stack taken_{};
  std::size_t first_;
  std::vector<at::Tensor> written_{}, read_{}, deferred_{};
  std::optional<std::size_t> device_{}, dtype_{}, generator_{};
  bool pins_ = false;
  bool writes_out_ = false;
};

/// Where every operation of a scope arrives first.
void on_operation(c10::OperatorHandle const& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// Once in a process, however many files and libraries have a copy of this header.
[[gnu::visibility("default")]] inline void listen_to_operations() {
  static auto* const listening = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
      c10::DispatchKey::DeferredInit, c10::KernelFunction::makeFromBoxedFunction<&on_operation>(),
      "weft: deferred initialization"));
  static_cast<void>(listening);
}

}  // namespace init::detail
}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/init/operation_call.ipp>
#endif
