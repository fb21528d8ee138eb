// unit/deferred_init.hpp -- modules that are built without memory, or on another device.
// In: a scope, and a module that is built in it. Out: the same module, and the same random numbers, with memory when it is asked for.
//
//   auto const model = [] { weft::DeferredInit const scope; return Model(4096); }();   // no memory
//   auto wrapped = fabric.setup(model);                                                // one parameter after another
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <weft/core/error.hpp>
#include <weft/unit/init_tape.hpp>
#include <weft/unit/node.hpp>

namespace weft {

/// How modules are built in a scope. What is not said is as in the scope around it, at last as in LibTorch.
struct Init {
  bool deferred = true;  // false: at once
  bool empty = false;    // nothing is drawn: what random numbers would have gone into has no values, and is loaded later. Fills and tables are made
  std::optional<at::Device> device{};     // of tensors for which the module says none
  std::optional<at::ScalarType> dtype{};  // of floating-point tensors for which the module says none
};

/// What deferring has come to.
struct InitReport {
  std::size_t deferred_bytes = 0;                  // that got no memory when the module was built
  std::vector<unit::EarlyRead> early_reads{};      // operations of the constructor that needed values, and the memory that this took
  std::vector<std::string> uninitialised{};        // parameters and buffers that nothing has given values

  std::size_t early_bytes() const {
    std::size_t sum = 0;
    for (auto const& read : early_reads) sum += read.bytes;
    return sum;
  }
};

namespace unit::detail {

struct InitScope {
  Init how;
  std::shared_ptr<InitTape> tape;
  InitScope* around = nullptr;
};
[[gnu::visibility("default")]] inline constinit thread_local InitScope* init_scope = nullptr;

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
      if (about.type()->kind() == c10::TypeKind::GeneratorType || (about.type()->kind() == c10::TypeKind::OptionalType && about.type()->expectRef<c10::OptionalType>().getElementType()->kind() == c10::TypeKind::GeneratorType))
        generator_ = i;
    }
  }

  /// See Init::device and Init::dtype.
  void redirect(Init const& how) {
    if (!is_factory()) return;
    if (how.device && argument(*device_).isNone()) argument(*device_) = *how.device;
    if (how.dtype && dtype_ && argument(*dtype_).isNone() && makes_floating_point()) argument(*dtype_) = *how.dtype;
  }
  void run(InitScope& scope) {
    if (!scope.how.deferred || !is_deferrable() || (deferred_.empty() && !is_factory())) return read_and_call(scope);
    if (is_view() || (op_.hasTag(at::Tag::inplace_view) && !name().starts_with("aten::resize"))) return op_.callBoxed(&stack_);
    if (!written_.empty()) return change(scope);
    make(scope);
  }

 private:
  static constexpr std::array overwriting{"aten::fill_", "aten::zero_", "aten::copy_", "aten::normal_", "aten::uniform_", "aten::random_", "aten::bernoulli_",
                                          "aten::exponential_", "aten::log_normal_", "aten::cauchy_", "aten::geometric_"};
  static constexpr std::array empties{"aten::empty", "aten::empty_strided", "aten::empty_permuted", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided"};

  static constexpr std::string_view converts = "aten::_to_copy";
  struct RefusedBackward final : torch::autograd::Node {
    torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
      fail<Error>("weft: backward reaches a parameter through a conversion that was made in its module's constructor, in a scope of DeferredInit: convert it in forward, or "
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

  /// [Note: filled by hand] torch::tensor({1.5, 2}) asks for memory and writes into it by a pointer, below autograd.
  bool is_filled_by_hand() const {
    auto const off = c10::impl::tls_local_dispatch_key_set().excluded_;
    return name() == "aten::empty" && off.has(c10::DispatchKey::AutogradCPU) && !off.has(c10::DispatchKey::ADInplaceOrView);
  }
  /// Autograd's graph is of values, so what it would record is computed. But module.to(dtype) converts with gradients on, and then takes
  /// the data only: a conversion is deferred, and refuses a backward pass.
  bool is_recorded_by_autograd() const {
    auto const needs = [](auto const& tensors) { return std::any_of(tensors.begin(), tensors.end(), [](auto const& tensor) { return tensor.requires_grad(); }); };
    return c10::GradMode::is_enabled() && (needs(written_) || (!is_view() && name() != converts && needs(read_)));
  }
  bool is_deferrable() const { return !pins_ && !is_filled_by_hand() && !is_recorded_by_autograd(); }
  bool is_view() const {
    auto const& returns = schema_.returns();
    return written_.empty() && !returns.empty() && std::all_of(returns.begin(), returns.end(), [](auto const& it) { return it.alias_info() && !it.alias_info()->isWrite(); });
  }

  /// What waits comes first.
  void read_and_call(InitScope& scope) {
    auto& tape = *scope.tape;
    bool const changes_what_waits = std::any_of(written_.begin(), written_.end(), [&](auto const& tensor) { return tape.reads(tensor); });
    if (changes_what_waits || (draws() && tape.has_draws()))
      tape.read_all(std::string(name()));
    else if (!deferred_.empty())
      tape.read(deferred_, std::string(name()));
    op_.callBoxed(&stack_);
  }

  /// An operation in place.
  void change(InitScope& scope) {
    if (writes_out_ || !std::all_of(written_.begin(), written_.end(), [](auto const& tensor) { return awaited(tensor); })) return read_and_call(scope);
    torch::jit::Stack results;
    for (auto const& about : schema_.returns()) {
      if (!about.alias_info()) return read_and_call(scope);
      for (std::size_t i = 0; i < schema_.arguments().size(); ++i)
        if (auto const* const alias = schema_.arguments()[i].alias_info(); alias && alias->beforeSets() == about.alias_info()->beforeSets()) results.push_back(argument(i));
    }
    bool has_failed = false;
    on_meta(has_failed);  // shapes that do not fit are an error here and now
    if (has_failed) return read_and_call(scope);
    bool const overwrites = std::find(overwriting.begin(), overwriting.end(), name()) != overwriting.end();
    scope.tape->record({.op = op_, .arguments = take_arguments(), .written = written_, .made = {}, .overwrites = overwrites, .generator = generator(written_.front().device())}, scope.how.empty);
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
    bool const are_plain = std::all_of(shapes.begin(), shapes.end(), [](auto const& shape) { return shape.layout() == at::kStrided && shape.is_meta() && shape.storage().use_count() == 1; });
    if (!results || has_failed || shapes.empty() || !are_plain) return read_and_call(scope);
    auto const device = device_of_results();
    std::vector<at::Tensor> made;
    for (auto const& shape : shapes) {
      auto tensor = at::detail::make_tensor<c10::TensorImpl>(scope.tape->make_storage(shape.storage().nbytes(), device),
                                                             c10::DispatchKeySet(c10::computeDispatchKey(shape.scalar_type(), at::kStrided, device)), shape.dtype());
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides(), shape.storage_offset());
      if (c10::GradMode::is_enabled() && std::any_of(read_.begin(), read_.end(), [](auto const& from) { return from.requires_grad(); }) && c10::isFloatingType(tensor.scalar_type())) {
        auto const node = make_node<RefusedBackward>();
        torch::autograd::impl::set_gradient_edge(tensor, {node, node->add_input_metadata(tensor)});
      }
      made.push_back(std::move(tensor));
    }
    auto arguments = take_arguments();
    std::size_t next = 0;
    for (auto const& result : *results) stack_.push_back(with_tensors(result, [&](at::Tensor const&) { return made[next++]; }));
    if (std::find(empties.begin(), empties.end(), name()) != empties.end()) return;
    scope.tape->record({.op = op_, .arguments = std::move(arguments), .written = {}, .made = made, .generator = generator(device)}, scope.how.empty);
  }

  /// The shapes of the results. Nothing: this operation does not say them without values; `has_failed`: nor would it with these arguments.
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
  auto* const scope = init_scope;
  // What is made of other operations is taken apart, so that each of them arrives.
  bool const is_composite = scope && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  std::optional<InitCall> call;
  if (scope) call.emplace(op, *stack);
  if (scope) call->redirect(scope->how);
  if (is_composite) {
    call.reset();
    return op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::DeferredInit), stack);
  }
  c10::impl::ExcludeDispatchKeyGuard const whole(c10::DispatchKey::DeferredInit);
  if (scope)
    call->run(*scope);
  else
    op.callBoxed(stack);
}

/// Once in a process, however many files and libraries have a copy of this header.
[[gnu::visibility("default")]] inline void listen_to_operations() {
  static auto* const listening = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().registerFallback(c10::DispatchKey::DeferredInit, c10::KernelFunction::makeFromBoxedFunction<&on_operation>(), "weft: deferred initialisation"));
  static_cast<void>(listening);
}

/// Parameters, then buffers, each once.
inline std::vector<std::pair<std::string, at::Tensor>> state_of(torch::nn::Module const& module) {
  std::vector<std::pair<std::string, at::Tensor>> state;
  std::unordered_map<at::TensorImpl*, bool> known;
  auto const add = [&](auto const& named) {
    for (auto const& item : named)
      if (item.value().defined() && known.emplace(item.value().unsafeGetTensorImpl(), true).second) state.emplace_back(item.key(), item.value());
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return state;
}

}  // namespace unit::detail

/// While it lives, what this thread builds gets no memory: parameters, buffers and other tensors know their shapes, and what is done to
/// them is recorded. Random numbers are those of a program without the scope, and so is the generator once the module has been set up.
///
/// Whoever reads a value in the scope gets it, and report() says who did and what it took. After the scope, a tensor without memory
/// is an error until setup, or weft::materialise(module). A module gets its memory with all else that was built in the same scope.
class [[nodiscard]] DeferredInit {
 public:
  explicit DeferredInit(Init how = {}) {
    unit::detail::listen_to_operations();
    scope_.around = std::exchange(unit::detail::init_scope, &scope_);
    scope_.tape = scope_.around ? scope_.around->tape : unit::InitTape::of_thread();
    if (scope_.around) {
      if (!how.device) how.device = scope_.around->how.device;
      if (!how.dtype) how.dtype = scope_.around->how.dtype;
    }
    scope_.how = how;
    deferred_before_ = scope_.tape->bytes_deferred();
    reads_before_ = scope_.tape->early_reads().size();
  }
  ~DeferredInit() {
    unit::detail::init_scope = scope_.around;
    if (!scope_.around) scope_.tape->end_scope();
  }
  DeferredInit(DeferredInit const&) = delete;
  DeferredInit& operator=(DeferredInit const&) = delete;

  /// Of the scope so far.
  InitReport report() const {
    auto const& reads = scope_.tape->early_reads();
    return {.deferred_bytes = scope_.tape->bytes_deferred() - deferred_before_, .early_reads = {reads.begin() + static_cast<std::ptrdiff_t>(reads_before_), reads.end()}};
  }

 private:
  unit::detail::InitScope scope_;
  std::size_t deferred_before_, reads_before_;
  c10::impl::IncludeDispatchKeyGuard listening_{c10::DispatchKey::DeferredInit};
};

namespace unit {

/// Parameters and buffers that nothing has given values so far.
inline std::vector<std::string> uninitialised_in(torch::nn::Module const& module) {
  std::vector<std::string> names;
  for (auto const& [name, tensor] : detail::state_of(module))
    if (auto const* const found = detail::awaited(tensor); found && found->tape->is_uninitialised(tensor)) names.push_back(name);
  return names;
}

/// Whether something of it waits for memory on another device than this.
inline bool waits_elsewhere(torch::nn::Module const& module, at::Device device) {
  auto const state = detail::state_of(module);
  return std::any_of(state.begin(), state.end(), [&](auto const& item) { return is_deferred(item.second) && item.second.device() != device; });
}

/// Those on which something is still to be done for this module.
inline std::vector<std::shared_ptr<InitTape>> tapes_of(torch::nn::Module const& module) {
  std::vector<std::shared_ptr<InitTape>> tapes;
  auto const add = [&](std::shared_ptr<InitTape> const& tape) {
    if (tape && std::find(tapes.begin(), tapes.end(), tape) == tapes.end()) tapes.push_back(tape);
  };
  for (auto const& [name, tensor] : detail::state_of(module))
    if (auto const* const found = detail::awaited(tensor)) add(found->tape);
  add(InitTape::last_of_thread());  // all of the module may have values, while a table beside it has none
  return tapes;
}

/// Gives a module's parameters and buffers that have no memory their values: `completed` is called with each of them as soon as it has its own,
/// and the memory may be taken from it there. Beside what the program keeps then, memory is held for the operations of one parameter.
inline void initialise(torch::nn::Module const& module, std::function<void(at::Tensor const&)> const& completed) {
  std::unordered_map<c10::StorageImpl const*, std::vector<at::Tensor>> waiting;
  std::vector<at::Tensor> tensors;
  for (auto const& [name, tensor] : detail::state_of(module)) {
    tensors.push_back(tensor);
    if (is_deferred(tensor)) waiting[tensor.storage().unsafeGetStorageImpl()].push_back(tensor);
  }
  for (auto const& tape : tapes_of(module))
    tape->replay_scopes_of(tensors, [&](c10::StorageImpl& storage) {
      if (auto const found = waiting.find(&storage); found != waiting.end())
        for (auto const& tensor : found->second) completed(tensor);
    });
}

}  // namespace unit

/// A module that fabric.init_module has built, for fabric.setup: until then it has no memory, and nothing that could use it.
template <class M>
class [[nodiscard]] Unmaterialised {
 public:
  Unmaterialised(M module, InitReport report) : module_(std::move(module)), report_(std::move(report)) {}
  InitReport const& report() const { return report_; }
  M take() && { return std::move(module_); }

 private:
  M module_;
  InitReport report_;
};
template <class T>
inline constexpr bool is_unmaterialised_v = false;
template <class M>
inline constexpr bool is_unmaterialised_v<Unmaterialised<M>> = true;

/// Gives a module that was built in a scope of DeferredInit its memory and its values, without a strategy.
template <class M>
InitReport materialise(M const& module) {
  torch::nn::Module const& it = *module;
  InitReport report{.uninitialised = unit::uninitialised_in(it)};
  unit::initialise(it, [](at::Tensor const&) {});
  return report;
}

}  // namespace weft
