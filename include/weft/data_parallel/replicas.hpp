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
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <weft/model/activation_rules.hpp>

namespace weft::inline v0::data_parallel {

/// Gradients of a replica's parameter go on to the model's own. Autograd adds up those of all replicas.
struct ToOriginal final : torch::autograd::Node {
  explicit ToOriginal(at::Device it) : device(it) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return {gradients[0].defined() ? gradients[0].to(device) : at::Tensor()};
  }
  at::Device device;
};

void send_gradients(at::Tensor const& replica, at::Tensor const& original);

/// Pairs a clone's tensors with the original's, or says what the clone lacks.
void connect(torch::nn::Module const& original, torch::nn::Module& clone, std::string const& path);

/// The model's clone on `device`, for a call that begins now: parameters, buffers, flags and members as they are. Hooks
/// of its units are not cloned, what becomes of their activations is.
std::shared_ptr<torch::nn::Module> replica_of(torch::nn::Module& model, at::Device device);

/// run(part) for each part, on a thread of its own with the caller's modes and its streams; the first on this thread.
/// The first exception goes on when all are through. Hooks of a saved_tensors scope stay with the caller's thread, and
/// so with the first part: they may not be called by several threads at once. Replicas on the CPU, where they stand in
/// for devices, have one generator of random numbers: they take turns, so that their draws have an order.
void run_parts(std::vector<at::Device> const& devices, int num_parts, std::function<void(int)> const& run);

/// Once a program, where there is more than one device.
inline void recommend_ddp(std::size_t num_devices) {
  static std::atomic<bool> said = false;
  if (num_devices > 1 && !said.exchange(true))
    TORCH_WARN("weft: DataParallel copies the model to ", num_devices,
               " devices in each forward and drives them from one process; DDP<> keeps a process and a copy on each "
               "device, and is faster");
}

}  // namespace weft::data_parallel

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data_parallel/replicas.ipp>
#endif
