// data_parallel/replicas.hpp -- a model on several devices of one process, for one call.
// In: the model on its first device. Out: clones whose gradients arrive at the model, and calls of all of them side by
// side.
//
// LibTorch's torch::nn::parallel with its faults left out: the model itself runs on the first device, so what its
// forward writes into buffers is kept; a parameter that some replica does not use, a frozen one and an undefined one
// are ordinary; clones draw no random numbers; any outputs and any device.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <weft/activation/recompute.hpp>
#include <weft/comm/autograd_node.hpp>
#include <weft/core/error.hpp>
#include <weft/model/activation_rules.hpp>
#include <weft/unit/walk.hpp>

namespace weft::inline v0::data_parallel {

/// Gradients of a replica's parameter go on to the model's own. Autograd adds up those of all replicas.
struct ToOriginal final : torch::autograd::Node {
  explicit ToOriginal(at::Device it) : device(it) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return {gradients[0].defined() ? gradients[0].to(device) : at::Tensor()};
  }
  at::Device device;
};

inline void send_gradients(at::Tensor const& replica, at::Tensor const& original) {
  if (replica.grad_fn()) return;  // of a module that is registered twice
  replica.requires_grad_(false);  // reset() made it a leaf of its own
  if (!original.requires_grad() || !at::GradMode::is_enabled()) return;
  auto const node = comm::make_node<ToOriginal>(original.device());
  node->add_next_edge(torch::autograd::impl::gradient_edge(original));
  torch::autograd::set_history(replica, node);
}

/// Pairs a clone's tensors with the original's, or says what the clone lacks.
inline void connect(torch::nn::Module const& original, torch::nn::Module& clone, std::string const& path) {
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

/// The model's clone on `device`, for a call that begins now: parameters, buffers, flags and members as they are. Hooks
/// of its units are not cloned, what becomes of their activations is.
inline std::shared_ptr<torch::nn::Module> replica_of(torch::nn::Module& model, at::Device device) {
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

/// run(part) for each part, on a thread of its own with the caller's modes and its streams; the first on this thread.
/// The first exception goes on when all are through. Hooks of a saved_tensors scope stay with the caller's thread, and
/// so with the first part: they may not be called by several threads at once. Replicas on the CPU, where they stand in
/// for devices, have one generator of random numbers: they take turns, so that their draws have an order.
inline void run_parts(std::vector<at::Device> const& devices, int num_parts, std::function<void(int)> const& run) {
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

/// Once a program, where there is more than one device.
inline void recommend_ddp(std::size_t num_devices) {
  static std::atomic<bool> said = false;
  if (num_devices > 1 && !said.exchange(true))
    TORCH_WARN("weft: DataParallel copies the model to ", num_devices,
               " devices in each forward and drives them from one process; DDP<> keeps a process and a copy on each "
               "device, and is faster");
}

}  // namespace weft::data_parallel
