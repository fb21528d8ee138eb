// data/move.hpp -- batches go where the model is.
// In: a value with tensors inside. Out: the same value with every tensor on one device; beside the computation, if
// something moves it so.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <weft/core/visit.hpp>

namespace weft::inline v0::data {

// Copies to a GPU do not wait for it: kernels queued later see the data. Copies to the CPU wait, since nothing else
// would.
void move_in_place(at::Tensor& tensor, at::Device device);

template <class Value>
Value move_to(Value value, at::Device device) {
  for_each_leaf<at::Tensor>(value, [device](at::Tensor& tensor) { move_in_place(tensor, device); });
  return value;
}

// How a loader's batches reach a device while it computes on earlier ones.
class Transport {
 public:
  struct Flight {
    virtual ~Flight() = default;
    // What the loop queues from here on sees the copies.
    virtual void arrive() = 0;
  };
  virtual ~Transport() = default;
  // Memory that the device reads by itself; on the thread that made the batch.
  virtual at::Tensor pin(at::Tensor const& tensor) = 0;
  // Puts copies in the tensors' places; nobody waits for them. On the loop's thread.
  virtual std::unique_ptr<Flight> depart(std::vector<at::Tensor*> const& tensors) = 0;
};

// [Note: copies on a stream of their own] Queued on the stream that computes, a copy would begin after everything that
// was queued before it. On its own stream it runs beside that; the computing stream waits for its event when the batch
// is handed out. The copies belong to the stream on which they were allocated, so the allocator is told of the
// computing stream, too: see [Note: memory belongs to a stream].
class SideStream final : public Transport {
 public:
  explicit SideStream(at::Device device)
      : device_(device), side_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}

  at::Tensor pin(at::Tensor const& tensor) override {
    c10::DeviceGuard const here(device_);  // a new thread's device is the first one, which another rank may have
    return tensor.is_pinned() ? tensor : tensor.pin_memory();
  }

  std::unique_ptr<Flight> depart(std::vector<at::Tensor*> const& tensors) override;

 private:
  struct Copies final : Flight {
    explicit Copies(at::Device to) : device(to), done(to.type()) {}
    void arrive() override;
    at::Device device;
    c10::Event done;
    std::vector<at::Tensor> tensors;
  };

  at::Device device_;
  c10::Stream side_;
};

// Those of a value that are not on the device yet.
template <class Value>
std::vector<at::Tensor*> tensors_elsewhere(Value& value, at::Device device) {
  std::vector<at::Tensor*> tensors;
  for_each_leaf<at::Tensor>(value, [&](at::Tensor& tensor) {
    if (tensor.defined() && tensor.device() != device) tensors.push_back(&tensor);
  });
  return tensors;
}

}  // namespace weft::data

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data/move.ipp>
#endif
