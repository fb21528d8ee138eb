// model/model.hpp -- the model as `setup` returns it.
// In: a module and its strategy's engine. Out: calls that the engine sees, and the module itself.
#pragma once

#include <exception>
#include <memory>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>
#include <weft/core/process_wide.hpp>
#include <weft/core/visit.hpp>
#include <weft/init/deferred_init.hpp>
#include <weft/model/activation_rules.hpp>
#include <weft/model/engine.hpp>
#include <weft/model/module_watch.hpp>
#include <weft/model/parameter_table.hpp>
#include <weft/model/precision.hpp>
#include <weft/model/steps.hpp>
#include <weft/unit/blocks.hpp>
#include <weft/unit/hooks.hpp>

namespace weft::inline v0 {
namespace model {

using unit::impl_of_t;

/// What a holder or pointer holds, for `call`, which needs it.
template <class M>
std::shared_ptr<torch::nn::Module> shared_module(char const* call, M const& module) {
  if constexpr (requires { typename M::ContainedType; }) {
    if (module.is_empty())
      fail<ConfigurationError>("weft: ", call, ": the module holder is empty; construct the module first");
    return module.ptr();
  } else {
    if (!module) fail<ConfigurationError>("weft: ", call, ": the module pointer is null; construct the module first");
    return module;
  }
}

/// The class that a member is of.
template <class Member>
struct ClassOf {
  using type = void;
};
template <class Class, class Type>
struct ClassOf<Type Class::*> {
  using type = Class;
};
template <class Class, auto Method>
consteval bool is_forward() {
  if constexpr (requires { requires std::is_same_v<decltype(&Class::forward), std::remove_const_t<decltype(Method)>>; })
    return Method == &Class::forward;
  else
    return false;
}

/// What copies of one wrapped model share.
struct ModelState : std::enable_shared_from_this<ModelState> {
  std::shared_ptr<torch::nn::Module> module;  // outlives the engine, which refers to it
  ParameterTable table;
  ModuleWatch watch;
  std::shared_ptr<comm::Session> session;
  std::shared_ptr<Engine> engine;
  std::shared_ptr<unit::RootActivity> activity = std::make_shared<unit::RootActivity>();
  InitReport init;
  std::shared_ptr<precision::Rules const> rules{};  // null: nothing is converted
  std::shared_ptr<unit::BackwardHook> scaled{};     // of a precision that scales losses
  int depth = 0;                                    // a method that calls the wrapped model again is still one entry

  ~ModelState();

  /// Before a forward that trains.
  void check_module() const {
    if (at::GradMode::is_enabled() && !watch.is_same(*module))
      ModuleWatch::refuse(*module, table, session->ranks.global_rank);
  }

  /// A module has one engine at a time: two would both cut, gather and reduce its parameters.
  void refuse_second_setup() {
    if (!core::process_wide<SetUp>([this](SetUp& modules) { return modules.insert(module.get()).second; }))
      fail<ConfigurationError>(
          "weft: setup: this module is set up already, and that wrapped model still lives; use it, pass a clone of the "
          "module, or let the first one go before");
    is_registered_ = true;
  }

 private:
  struct [[gnu::visibility("default")]] SetUp : std::unordered_set<torch::nn::Module const*> {};
  bool is_registered_ = false;
};

/// The call itself, under the precision.
template <class Result, class Call, class... Arguments>
Result compute(ModelState const& state, Call const& call, Arguments&&... arguments) {
  if (!state.rules) return call(plain(std::forward<Arguments>(arguments))...);
  auto const scope = state.rules->scope(state.session->device.type());
  return call_converted(*state.rules, call, std::forward<Arguments>(arguments)...);
}

/// Runs `call` as the model's forward.
template <class Call, class... Arguments>
auto run_forward(ModelState& state, Call const& call, Arguments&&... arguments) {
  using Result = std::remove_cvref_t<decltype(call(plain(std::forward<Arguments>(arguments))...))>;
  if (state.depth > 0) return static_cast<Result>(call(plain(std::forward<Arguments>(arguments))...));
  struct Entry {
    explicit Entry(ModelState& state)
        : state(state), active(*state.activity), phase(*state.session->recorder, "forward") {
      ++state.depth;
    }
    ~Entry() {
      --state.depth;
      if (!left) state.engine->abandon_forward();
    }
    ModelState& state;
    unit::RootActivity::Scope active;
    comm::Recorder::Phase phase;
    bool left = false;
  } entry(state);
  state.check_module();
  state.engine->pre_forward();
  if constexpr (std::is_void_v<Result>) {
    compute<void>(state, call, std::forward<Arguments>(arguments)...);
    state.engine->post_forward({});
    entry.left = true;
  } else {
    Result output = compute<Result>(state, call, std::forward<Arguments>(arguments)...);
    std::vector<at::Tensor*> tensors;
    for_each_leaf<at::Tensor>(output, [&](at::Tensor& tensor) {
      if (state.rules && tensor.defined() && tensor.is_floating_point()) tensor = state.rules->output(tensor);
      tensors.push_back(&tensor);
    });
    state.engine->post_forward(tensors);
    if (state.scaled) unit::add_backward_hook(state.scaled, tensors);
    entry.left = true;
    return output;
  }
}

}  // namespace model

/// A set-up model: a handle, cheap to copy. Calling it runs forward under the strategy; any other method that the loss
/// comes from goes through call<&M::method>(...), or by its name (model/steps.hpp). `->` reaches the module for
/// everything else.
template <class M>
class Model : public model::NamedSteps<Model<M>> {
 public:
  using Impl = model::impl_of_t<M>;
  static_assert(
      !std::is_void_v<Impl>,
      "weft: setup: pass a module holder (torch::nn::Linear, WEFT_MODULE's type) or a std::shared_ptr to a module");

  /// Made by Fabric::setup and setup_module.
  Model(M module, std::shared_ptr<model::ModelState> state) : module_(std::move(module)), state_(std::move(state)) {}

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    return model::run_forward(
        *state_, [this]<class... As>(As&&... as) -> decltype(auto) { return this->forward(std::forward<As>(as)...); },
        std::forward<Arguments>(arguments)...);
  }

  /// Another method as the model's entry: model.call<&LanguageModelImpl::generate>(prompt, 100).
  template <auto Method, class... Arguments>
  auto call(Arguments&&... arguments) {
    if constexpr (check_method<Method>())
      return enter([](Impl& module,
                      auto&&... as) -> decltype(auto) { return (module.*Method)(std::forward<decltype(as)>(as)...); },
                   std::forward<Arguments>(arguments)...);
    else
      return at::Tensor();  // refused above; not void, which would be a second error
  }

  /// Code of the caller's as the model's entry, where one method doesn't say it: model.enter([](NetImpl& net, auto
  /// const& x) { return net.decode(net.encode(x)); }, x).
  template <class Call, class... Arguments>
  auto enter(Call const& call, Arguments&&... arguments) {
    return model::run_forward(
        *state_, [&]<class... As>(As&&... as) -> decltype(auto) { return call(module(), std::forward<As>(as)...); },
        std::forward<Arguments>(arguments)...);
  }

  /// Whether it is a method of the module's class; with the sentence that says what is wrong with another one, and with
  /// forward.
  template <auto Method>
  static consteval bool check_method() {
    using Of = typename model::ClassOf<decltype(Method)>::type;
    constexpr bool is_method = std::is_member_function_pointer_v<decltype(Method)> && std::is_base_of_v<Of, Impl>;
    static_assert(is_method, "weft: call<&M::method>(...): write a member function of the model's class");
    static_assert(!is_method || !model::is_forward<Of, Method>(),
                  "weft: call<&M::forward>(...): forward is what the model itself does; write model(...)");
    return is_method;
  }

  Impl* operator->() const { return &module(); }
  Impl& operator*() const { return module(); }
  Impl& module() const { return *static_cast<Impl*>(pointer()); }

  /// Each parameter once, by its LibTorch name; tied names are aliases.
  model::ParameterTable const& table() const { return state_->table; }
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> tensors;
    for (auto const& row : state_->table.rows()) tensors.push_back(row.tensor);
    return tensors;
  }
  /// What became of a module that was built without memory.
  InitReport const& init_report() const { return state_->init; }
  void train(bool on = true) const { module().train(on); }
  void eval() const { module().eval(); }

  std::shared_ptr<model::ModelState> const& state() const { return state_; }

 private:
  /// A unit's own call keeps its hooks and forward's default arguments. LibTorch's holders cannot be called where
  /// forward is a template (Sequential), their modules can.
  template <class... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    if constexpr (std::is_base_of_v<unit::UnitBase, Impl>)
      return module_(std::forward<Arguments>(arguments)...);
    else
      return module().forward(std::forward<Arguments>(arguments)...);
  }
  Impl* pointer() const {
    if constexpr (requires { typename M::ContainedType; })
      return const_cast<M&>(module_).get();
    else
      return module_.get();
  }

  M module_;
  std::shared_ptr<model::ModelState> state_;
};

template <class T>
inline constexpr bool is_model_v = false;
template <class M>
inline constexpr bool is_model_v<Model<M>> = true;

namespace model {

/// Makes a model's parameters whole until the end of the scope.
class [[nodiscard]] UnshardedParameters {
 public:
  UnshardedParameters(std::shared_ptr<Engine> engine, bool writeback)
      : engine_(std::move(engine)), writeback_(writeback) {
    engine_->unshard_all();
  }
  ~UnshardedParameters() { engine_->reshard_all(writeback_ && std::uncaught_exceptions() == exceptions_); }
  UnshardedParameters(UnshardedParameters const&) = delete;
  UnshardedParameters& operator=(UnshardedParameters const&) = delete;

 private:
  std::shared_ptr<Engine> engine_;
  bool writeback_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace model

/// Says what backward passes do with gradients until the end of the scope, then restores what was set before.
class [[nodiscard]] BackwardSyncGuard {
 public:
  BackwardSyncGuard(std::shared_ptr<model::Engine> engine, model::BackwardSync sync)
      : engine_(std::move(engine)), before_(engine_->set_backward_sync(sync)) {}
  ~BackwardSyncGuard() { engine_->set_backward_sync(before_); }
  BackwardSyncGuard(BackwardSyncGuard const&) = delete;
  BackwardSyncGuard& operator=(BackwardSyncGuard const&) = delete;

 private:
  std::shared_ptr<model::Engine> engine_;
  model::BackwardSync before_;
};

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/model/model.ipp>
#endif
