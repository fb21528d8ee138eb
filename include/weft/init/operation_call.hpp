// init/operation_call.hpp -- operations in a scope that builds modules, one by one.
// In: LibTorch's operations with their arguments, as the scope says. Out: done, done elsewhere, or deferred, with
// results that have no memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <weft/comm/autograd_node.hpp>
#include <weft/core/error.hpp>
#include <weft/init/deferred_operations.hpp>
#include <weft/init/deferred_storage.hpp>

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
  InitCall(c10::OperatorHandle const& op, torch::jit::Stack& stack)
      : op_(op), schema_(op.schema()), stack_(stack), first_(stack.size() - schema_.arguments().size()) {
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      auto const& about = schema_.arguments()[i];
      bool const writes = about.alias_info() && about.alias_info()->isWrite();
      writes_out_ = writes_out_ || (writes && about.kwarg_only());
      for_each_tensor(argument(i), [&](at::Tensor const& tensor) {
        (writes ? written_ : read_).push_back(tensor);
        if (awaited(tensor)) deferred_.push_back(tensor);
      });
      if (about.name() == "device") device_ = i;
      if (about.name() == "dtype") dtype_ = i;
      if (about.name() == "pin_memory") pins_ = argument(i).isBool() && argument(i).toBool();
      if (about.name() == "generator") generator_ = i;
    }
  }

  /// See Init::device and Init::dtype.
  void redirect(Init const& how) {
    if (!is_factory()) return;
    if (how.device && argument(*device_).isNone()) argument(*device_) = *how.device;
    if (how.dtype && dtype_ && argument(*dtype_).isNone() && makes_floating_point()) argument(*dtype_) = *how.dtype;
  }
  /// Without a scope nothing gives values to what waits, so only what looks at shapes alone may go on.
  void refuse_without_values() const {
    bool const looks_at_shapes = is_view() ||
                                 (op_.hasTag(at::Tag::inplace_view) && !name().starts_with("aten::resize")) ||
                                 name().ends_with("_like") || name().starts_with("aten::new_") ||
                                 name() == "aten::is_same_size";
    if (deferred_.empty() || looks_at_shapes) return;
    fail<ConfigurationError>("weft: ", name(), " uses a tensor of ", deferred_.front().sizes(),
                             ": its initialization is deferred and it has no memory yet: pass its module to setup, or "
                             "call weft::materialize(module)");
  }
  void run(InitScope& scope) {
    for (auto const& tensor : deferred_)
      if (awaited(tensor)->operations != scope.operations)
        fail<ConfigurationError>(
            "weft: ", name(),
            " uses a tensor whose initialization is deferred on another thread: materialize its module there first");
    if (!scope.how.deferred || !is_deferrable() || (deferred_.empty() && !is_factory())) return read_and_call(scope);
    if (is_view() || (op_.hasTag(at::Tag::inplace_view) && !changes_memory())) return op_.callBoxed(&stack_);
    if (!written_.empty()) return change(scope);
    make(scope);
  }

 private:
  static constexpr std::array overwriting{"aten::fill_",      "aten::zero_",        "aten::copy_",
                                          "aten::normal_",    "aten::uniform_",     "aten::random_",
                                          "aten::bernoulli_", "aten::exponential_", "aten::log_normal_",
                                          "aten::cauchy_",    "aten::geometric_"};
  static constexpr std::array empties{"aten::empty",      "aten::empty_strided", "aten::empty_permuted",
                                      "aten::empty_like", "aten::new_empty",     "aten::new_empty_strided"};

  static constexpr std::string_view converts = "aten::_to_copy";
  struct RefusedBackward final : torch::autograd::Node {
    torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
      fail<Error>(
          "weft: backward reaches a parameter through a conversion that was made in its module's constructor, in a "
          "scope of DeferredInit: convert it in forward, or "
          "with gradients off");
    }
  };

  std::string_view name() const { return schema_.name(); }
  c10::IValue& argument(std::size_t i) { return stack_[first_ + i]; }
  bool draws() const { return generator_ || op_.hasTag(at::Tag::nondeterministic_seeded); }
  bool is_factory() const { return device_ && written_.empty() && read_.empty(); }
  bool makes_floating_point() {
    if (name() == "aten::randint" || name() == "aten::randperm" || name().ends_with("_indices")) return false;
    if (name() != "aten::arange" && name() != "aten::full" && name() != "aten::scalar_tensor") return true;
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i)
      if (argument(i).isDouble()) return true;
    return false;
  }

  /// [Note: filled by hand] torch::tensor(values) asks for memory and writes into it by a pointer, below autograd.
  /// (at::tensor(values) looks like any other at::empty.)
  bool is_filled_by_hand() const {
    auto const off = c10::impl::tls_local_dispatch_key_set().excluded_;
    return name() == "aten::empty" && off.has(c10::DispatchKey::AutogradFunctionality) &&
           !off.has(c10::DispatchKey::ADInplaceOrView);
  }
  /// Autograd's graph is of values, so what it would record is computed. But module.to(dtype) converts with gradients
  /// on, and then takes the data only: a conversion is deferred, and refuses a backward pass.
  bool is_recorded_by_autograd() const {
    auto const needs = [](auto const& tensors) {
      return std::any_of(tensors.begin(), tensors.end(), [](auto const& tensor) { return tensor.requires_grad(); });
    };
    return c10::GradMode::is_enabled() && (needs(written_) || (!is_view() && name() != converts && needs(read_)));
  }
  /// Which memory a tensor lies in, and how much of it.
  bool changes_memory() const { return name().starts_with("aten::resize") || name().starts_with("aten::set_"); }
  bool is_cast() const {
    auto const is_on = [](at::Tensor const& tensor) {
      return (tensor.is_cpu() || tensor.is_cuda()) && at::autocast::is_autocast_enabled(tensor.device().type());
    };
    return written_.empty() && std::any_of(read_.begin(), read_.end(), is_on);
  }
  bool is_deferrable() const {
    return !pins_ && !is_filled_by_hand() && !is_recorded_by_autograd() && !changes_memory() && !is_cast();
  }
  bool is_view() const {
    auto const& returns = schema_.returns();
    return written_.empty() && !returns.empty() && std::all_of(returns.begin(), returns.end(), [](auto const& it) {
             return it.alias_info() && !it.alias_info()->isWrite();
           });
  }

  /// What waits comes first.
  void read_and_call(InitScope& scope) {
    auto& operations = *scope.operations;
    bool const changes_what_waits = std::any_of(written_.begin(), written_.end(),
                                                [&](auto const& tensor) { return operations.reads(tensor); });
    if (changes_what_waits || (draws() && operations.has_draws()))
      operations.read_all(std::string(name()));
    else if (!deferred_.empty())
      operations.read(deferred_, std::string(name()));
    op_.callBoxed(&stack_);
  }

  /// An operation in place.
  void change(InitScope& scope) {
    if (writes_out_ ||
        !std::all_of(written_.begin(), written_.end(), [](auto const& tensor) { return awaited(tensor); }))
      return read_and_call(scope);
    torch::jit::Stack results;
    for (auto const& about : schema_.returns()) {
      if (!about.alias_info()) return read_and_call(scope);
      for (std::size_t i = 0; i < schema_.arguments().size(); ++i)
        if (auto const* const alias = schema_.arguments()[i].alias_info();
            alias && alias->beforeSets() == about.alias_info()->beforeSets())
          results.push_back(argument(i));
    }
    bool has_failed = false;
    on_meta(has_failed);  // shapes that do not fit are an error here and now
    if (has_failed) return read_and_call(scope);
    bool const overwrites = std::find(overwriting.begin(), overwriting.end(), name()) != overwriting.end();
    scope.operations->record({.name = schema_.name(),
                              .run = call(),
                              .arguments = take_arguments(),
                              .written = written_,
                              .read = read_,
                              .made = {},
                              .overwrites = overwrites,
                              .generator = generator(written_.front().device())},
                             scope.how.empty);
    for (auto& result : results) stack_.push_back(std::move(result));
  }

  /// An operation with results of its own.
  void make(InitScope& scope) {
    bool has_failed = false;
    auto const results = on_meta(has_failed);
    std::vector<at::Tensor> shapes;
    if (results)
      for (auto const& result : *results) {
        has_failed = has_failed || !(result.isTensor() || result.isTensorList());
        for_each_tensor(result, [&](at::Tensor const& tensor) { shapes.push_back(tensor); });
      }
    bool const are_plain = std::all_of(shapes.begin(), shapes.end(), [](auto const& shape) {
      return shape.layout() == at::kStrided && shape.is_meta() && shape.storage().use_count() == 1;
    });
    if (!results || has_failed || shapes.empty() || !are_plain) return read_and_call(scope);
    auto const device = device_of_results();
    std::vector<at::Tensor> made;
    for (auto const& shape : shapes) {
      auto tensor = scope.operations->make_tensor(shape, device);
      if (c10::GradMode::is_enabled() &&
          std::any_of(read_.begin(), read_.end(), [](auto const& from) { return from.requires_grad(); }) &&
          c10::isFloatingType(tensor.scalar_type())) {
        auto const node = comm::make_node<RefusedBackward>();
        torch::autograd::impl::set_gradient_edge(tensor, {node, node->add_input_metadata(tensor)});
      }
      made.push_back(std::move(tensor));
    }
    auto arguments = take_arguments();
    std::size_t next = 0;
    for (auto const& result : *results)
      stack_.push_back(with_tensors(result, [&](at::Tensor const&) { return made[next++]; }));
    if (std::find(empties.begin(), empties.end(), name()) != empties.end()) return;
    scope.operations->record({.name = schema_.name(),
                              .run = call(),
                              .arguments = std::move(arguments),
                              .written = {},
                              .read = read_,
                              .made = made,
                              .generator = generator(device)},
                             scope.how.empty);
  }

  /// The shapes of the results. Nothing: this operation does not say them without values; `has_failed`: nor would it
  /// with these arguments.
  std::optional<torch::jit::Stack> on_meta(bool& has_failed) {
    torch::jit::Stack stack;
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i)
      stack.push_back(with_tensors(argument(i), [](at::Tensor const& tensor) {
        auto meta = at::Tensor(at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
        if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
        return meta;
      }));
    if (device_) stack[*device_] = at::Device(at::kMeta);
    if (generator_) stack[*generator_] = c10::IValue();
    at::NoGradGuard const no_grad;
    try {
      op_.callBoxed(&stack);
      return stack;
    } catch (c10::NotImplementedError const&) {
    } catch (c10::Error const&) {
      has_failed = true;
    }
    return std::nullopt;
  }

  std::function<void(torch::jit::Stack&)> call() const {
    return [op = op_](torch::jit::Stack& stack) { op.callBoxed(&stack); };
  }
  torch::jit::Stack take_arguments() {
    auto const begin = stack_.begin() + static_cast<std::ptrdiff_t>(first_);
    torch::jit::Stack arguments(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    taken_ = arguments;
    return arguments;
  }
  std::optional<at::Generator> generator(at::Device device) const {
    if (!draws()) return std::nullopt;
    if (generator_ && !taken_[*generator_].isNone()) return taken_[*generator_].toGenerator();
    return at::globalContext().defaultGenerator(device);
  }
  at::Device device_of_results() {
    at::Device device = at::kCPU;
    if (device_ && !argument(*device_).isNone()) {
      device = argument(*device_).toDevice();
    } else {
      for (auto const& tensor : read_)
        if (device.is_cpu()) device = tensor.device();  // a number may lie on the CPU beside others
    }
    if (!device.is_cpu() && !device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
    return device;
  }

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
inline void on_operation(c10::OperatorHandle const& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto* const scope = init_scope();
  std::optional<InitCall> call(std::in_place, op, *stack);
  if (scope) call->redirect(scope->how);
  // What is made of other operations is taken apart, so that each of them arrives.
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    call.reset();
    return op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::DeferredInit), stack);
  }
  c10::impl::ExcludeDispatchKeyGuard const whole(c10::DispatchKey::DeferredInit);
  if (scope) return call->run(*scope);
  call->refuse_without_values();
  call.reset();
  op.callBoxed(stack);
}

/// Once in a process, however many files and libraries have a copy of this header.
[[gnu::visibility("default")]] inline void listen_to_operations() {
  static auto* const listening = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
      c10::DispatchKey::DeferredInit, c10::KernelFunction::makeFromBoxedFunction<&on_operation>(),
      "weft: deferred initialization"));
  static_cast<void>(listening);
}

}  // namespace init::detail
}  // namespace weft
