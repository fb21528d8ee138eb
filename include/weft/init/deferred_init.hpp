// init/deferred_init.hpp -- modules that are built without memory, or on another device.
// In: a scope, and a module that is built in it. Out: the same module, and the same random numbers, with memory when it
// is asked for.
//
//   auto const model = [] { weft::DeferredInit const scope; return Model(4096); }();   // no memory
//   auto wrapped = fabric.setup(model);                                                // one parameter after another
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/module.h>

#include <weft/init/deferred_operations.hpp>
#include <weft/init/operation_call.hpp>

namespace weft::inline v0 {

/// What deferring has come to.
struct InitReport {
  std::size_t deferred_bytes = 0;  // that got no memory when the module was built
  std::vector<init::EarlyRead>
      early_reads{};  // operations of the constructor that needed values, and the memory that this took
  std::vector<std::string> uninitialized{};  // parameters and buffers that nothing has given values

  std::size_t early_bytes() const {
    std::size_t sum = 0;
    for (auto const& read : early_reads) sum += read.bytes;
    return sum;
  }
};

namespace init::detail {

/// Parameters, then buffers, each once.
std::vector<std::pair<std::string, at::Tensor>> state_of(torch::nn::Module const& module);

}  // namespace init::detail

/// While it lives, what this thread builds gets no memory: parameters, buffers and other tensors know their shapes, and
/// what is done to them is recorded. Random numbers are those of a program without the scope, and so is the generator
/// once the module has been set up.
///
/// Whoever reads a value in the scope gets it, and report() says who did and what it took. After the scope, a tensor
/// without memory is an error until setup, or weft::materialize(module). A module gets its memory with all else that
/// was built in the same scope.
class [[nodiscard]] DeferredInit {
 public:
  explicit DeferredInit(Init how = {});
  ~DeferredInit() {
    init::detail::init_scope() = scope_.around;
    if (!scope_.around) scope_.operations->end_scope();
  }
  DeferredInit(DeferredInit const&) = delete;
  DeferredInit& operator=(DeferredInit const&) = delete;

  /// Of the scope so far.
  InitReport report() const;

 private:
  init::detail::InitScope scope_;
  std::size_t deferred_before_, reads_before_;
  c10::impl::IncludeDispatchKeyGuard listening_{c10::DispatchKey::DeferredInit};
};

/// What a program writes into a tensor by a pointer: `fill(tensor)` is called when the tensor has memory, now or later.
/// It writes all of it, and draws nothing from LibTorch's generators.
void fill_with(at::Tensor const& tensor, std::function<void(at::Tensor const&)> fill);

namespace init {

/// Parameters and buffers that nothing has given values so far.
std::vector<std::string> uninitialized_in(torch::nn::Module const& module);

/// Whether something of it waits for memory on another device than this.
bool waits_elsewhere(torch::nn::Module const& module, at::Device device);

/// Those that this module's parameters and buffers wait for.
std::vector<std::shared_ptr<DeferredOperations>> deferred_operations_of(torch::nn::Module const& module);

/// Gives a module's parameters and buffers that have no memory their values: `completed` is called with each of them as
/// soon as it has its own, and the memory may be taken from it there. Beside what the program keeps then, memory is
/// held for the operations of one parameter.
void initialize(torch::nn::Module const& module, std::function<void(at::Tensor const&)> const& completed);

}  // namespace init

/// A module that fabric.init_module has built, for fabric.setup: until then it has no memory, and nothing that could
/// use it.
template <class M>
class [[nodiscard]] Unmaterialized {
 public:
  Unmaterialized(M module, InitReport report) : module_(std::move(module)), report_(std::move(report)) {}
  InitReport const& report() const { return report_; }
  M take() && { return std::move(module_); }

  template <class... Arguments>
  at::Tensor operator()(Arguments&&...) const {
    static_assert(sizeof(M) == 0,
                  "weft: a module from init_module has no memory before setup: pass it to fabric.setup, and call what "
                  "that returns");
    return {};
  }
  auto operator->() const {
    static_assert(sizeof(M) == 0,
                  "weft: a module from init_module has no memory before setup: pass it to fabric.setup, and use what "
                  "that returns; to change a module before, build it "
                  "in a scope of weft::DeferredInit");
    return module_.operator->();
  }

 private:
  M module_;
  InitReport report_;
};
/// Gives a module that was built in a scope of DeferredInit its memory and its values, without a strategy.
template <class M>
InitReport materialize(M const& module) {
  torch::nn::Module const& it = *module;
  InitReport report{.uninitialized = init::uninitialized_in(it)};
  init::initialize(it, [](at::Tensor const&) {});
  return report;
}
template <class M>
[[deprecated("weft: materialise is materialize now")]] InitReport materialise(M const& module) {
  return materialize(module);
}

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/init/deferred_init.ipp>
#endif
