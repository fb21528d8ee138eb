// data_parallel/replicas.ipp -- definitions of data_parallel/replicas.hpp.
#pragma once

#include <weft/data_parallel/replicas.hpp>

#include <exception>
#include <thread>

#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <weft/activation/recompute.hpp>
#include <weft/comm/autograd_node.hpp>
#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/unit/walk.hpp>

namespace weft::inline v0::data_parallel {

WEFT_INLINE void send_gradients(at::Tensor const& replica, at::Tensor const& original) {
  if (replica.grad_fn()) return;  // of a module that is registered twice
  replica.requires_grad_(false);  // reset() made it a leaf of its own
  if (!original.requires_grad() || !at::GradMode::is_enabled()) return;
  auto const node = comm::make_node<ToOriginal>(original.device());
  node->add_next_edge(torch::autograd::impl::gradient_edge(original));
  torch::autograd::set_history(replica, node);
}

WEFT_INLINE void connect(torch::nn::Module const& original, torch::nn::Module& clone, std::string const& path) {
  clone.train(original.is_training());  // containers' own clone() forgets it; children come after
  auto const require = [&](auto const* found, std::string const& name) {
    if (!found)
      fail<ConfigurationError>("weft: DataParallel: the clone of ", path.empty() ? "the model" : path, " has no ", name,
                               "; register the same names in reset()");
  };
  auto const pair = [&](auto const& ours, auto const& theirs) {
    for (auto const& tensor : ours) {
      auto const* const found = theirs.find(tensor.key());
      require(found, tensor.key());
      send_gradients(*found, tensor.value());
    }
  };
  pair(original.named_parameters(/*recurse=*/false), clone.named_parameters(/*recurse=*/false));
  pair(original.named_buffers(/*recurse=*/false), clone.named_buffers(/*recurse=*/false));
  auto const children = clone.named_children();
  for (auto const& child : original.named_children()) {
    if (!child.value()) continue;
    auto const* const found = children.find(child.key());
    require(found ? found->get() : nullptr, child.key());
    connect(*child.value(), **found, unit::join_path(path, child.key()));
  }
}

WEFT_INLINE std::shared_ptr<torch::nn::Module> replica_of(torch::nn::Module& model, at::Device device) {
  struct SameRandomNumbers {  // a clone first initializes itself anew
    ~SameRandomNumbers() { state.restore(); }
    activation::detail::RandomState state{std::vector{at::globalContext().defaultGenerator(at::kCPU)}};
  };
  std::shared_ptr<torch::nn::Module> clone;
  try {
    SameRandomNumbers const kept;
    clone = model.clone(device);
  } catch (c10::Error const& error) {
    fail<ConfigurationError>(
        "weft: DataParallel clones the model for each device, and ", model.name(),
        " cannot be cloned: derive it and the modules in it from torch::nn::Cloneable, and register "
        "parameters, buffers and modules in reset(); or write DDP<>. LibTorch says: ",
        error.what_without_backtrace());
  }
  connect(model, *clone, "");
  model::copy_activations(model, *clone);
  return clone;
}

WEFT_INLINE void run_parts(std::vector<at::Device> const& devices, int num_parts, std::function<void(int)> const& run) {
  bool const in_turn = devices.front().is_cpu();
  std::vector<c10::Stream> streams;  // where the caller's work on each device is, such as copies of the model
  for (int part = 0; part < num_parts; ++part)
    streams.push_back(
        c10::impl::VirtualGuardImpl(devices.front().type()).getStream(devices[static_cast<std::size_t>(part)]));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(num_parts));
  auto const guarded = [&](int part) noexcept {
    try {
      c10::StreamGuard const here(streams[static_cast<std::size_t>(part)]);
      run(part);
    } catch (...) {
      errors[static_cast<std::size_t>(part)] = std::current_exception();
    }
  };
  at::ThreadLocalState const modes;
  activation::detail::AutocastState const autocast;
  std::vector<std::jthread> threads;  // those that have begun are waited for, also if another cannot begin
  if (in_turn) guarded(0);
  for (int part = 1; part < num_parts && !(in_turn && errors[static_cast<std::size_t>(part - 1)]); ++part) {
    threads.emplace_back([&, part] {
      at::ThreadLocalStateGuard const inherited(modes);
      autocast.restore();
      guarded(part);
    });
    if (in_turn) threads.back().join();
  }
  if (!in_turn) guarded(0);
  threads.clear();
  for (auto const& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace weft::data_parallel
