// init/operation_call.ipp -- definitions of init/operation_call.hpp.
#pragma once

#include <weft/init/operation_call.hpp>

#include <algorithm>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>

#include <weft/comm/autograd_node.hpp>
#include <weft/core/build.hpp>
#include <weft/init/deferred_storage.hpp>

namespace weft::inline v0::init::detail {

WEFT_INLINE InitCall::InitCall(c10::OperatorHandle const& op, torch::jit::Stack& stack)
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

WEFT_INLINE void InitCall::redirect(Init const& how) {
  if (!is_factory()) return;
  if (how.device && argument(*device_).isNone()) argument(*device_) = *how.device;
  if (how.dtype && dtype_ && argument(*dtype_).isNone() && makes_floating_point()) argument(*dtype_) = *how.dtype;
}

WEFT_INLINE void InitCall::refuse_without_values() const {
  bool const looks_at_shapes = is_view() ||
                               (op_.hasTag(at::Tag::inplace_view) && !name().starts_with("aten::resize")) ||
                               name().ends_with("_like") || name().starts_with("aten::new_") ||
                               name() == "aten::is_same_size";
  if (deferred_.empty() || looks_at_shapes) return;
  fail<ConfigurationError>("weft: ", name(), " uses a tensor of ", deferred_.front().sizes(),
                           ": its initialization is deferred and it has no memory yet: pass its module to setup, or "
                           "call weft::materialize(module)");
}

WEFT_INLINE void InitCall::run(InitScope& scope) {
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

WEFT_INLINE bool InitCall::makes_floating_point() {
  if (name() == "aten::randint" || name() == "aten::randperm" || name().ends_with("_indices")) return false;
  if (name() != "aten::arange" && name() != "aten::full" && name() != "aten::scalar_tensor") return true;
  for (std::size_t i = 0; i < schema_.arguments().size(); ++i)
    if (argument(i).isDouble()) return true;
  return false;
}

WEFT_INLINE bool InitCall::is_filled_by_hand() const {
  auto const off = c10::impl::tls_local_dispatch_key_set().excluded_;
  return name() == "aten::empty" && off.has(c10::DispatchKey::AutogradFunctionality) &&
         !off.has(c10::DispatchKey::ADInplaceOrView);
}

WEFT_INLINE bool InitCall::is_recorded_by_autograd() const {
  auto const needs = [](auto const& tensors) {
    return std::any_of(tensors.begin(), tensors.end(), [](auto const& tensor) { return tensor.requires_grad(); });
  };
  return c10::GradMode::is_enabled() && (needs(written_) || (!is_view() && name() != converts && needs(read_)));
}

WEFT_INLINE bool InitCall::is_cast() const {
  auto const is_on = [](at::Tensor const& tensor) {
    return (tensor.is_cpu() || tensor.is_cuda()) && at::autocast::is_autocast_enabled(tensor.device().type());
  };
  return written_.empty() && std::any_of(read_.begin(), read_.end(), is_on);
}

WEFT_INLINE bool InitCall::is_view() const {
  auto const& returns = schema_.returns();
  return written_.empty() && !returns.empty() && std::all_of(returns.begin(), returns.end(), [](auto const& it) {
           return it.alias_info() && !it.alias_info()->isWrite();
         });
}

WEFT_INLINE void InitCall::read_and_call(InitScope& scope) {
  auto& operations = *scope.operations;
  bool const changes_what_waits = std::any_of(written_.begin(), written_.end(),
                                              [&](auto const& tensor) { return operations.reads(tensor); });
  if (changes_what_waits || (draws() && operations.has_draws()))
    operations.read_all(std::string(name()));
  else if (!deferred_.empty())
    operations.read(deferred_, std::string(name()));
  op_.callBoxed(&stack_);
}

WEFT_INLINE void InitCall::change(InitScope& scope) {
  if (writes_out_ || !std::all_of(written_.begin(), written_.end(), [](auto const& tensor) { return awaited(tensor); }))
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

WEFT_INLINE void InitCall::make(InitScope& scope) {
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
      auto const node = comm::make_node<comm::RefuseGradient>(
          "weft: backward reaches a parameter through a conversion that was made in its module's constructor, in a "
          "scope of DeferredInit: convert it in forward, or with gradients off");
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

WEFT_INLINE std::optional<torch::jit::Stack> InitCall::on_meta(bool& has_failed) {
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

WEFT_INLINE torch::jit::Stack InitCall::take_arguments() {
  auto const begin = stack_.begin() + static_cast<std::ptrdiff_t>(first_);
  torch::jit::Stack arguments(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  taken_ = arguments;
  return arguments;
}

WEFT_INLINE std::optional<at::Generator> InitCall::generator(at::Device device) const {
  if (!draws()) return std::nullopt;
  if (generator_ && !taken_[*generator_].isNone()) return taken_[*generator_].toGenerator();
  return at::globalContext().defaultGenerator(device);
}

WEFT_INLINE at::Device InitCall::device_of_results() {
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

WEFT_INLINE void on_operation(c10::OperatorHandle const& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
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

}  // namespace weft::init::detail
