// activation/offload.hpp -- activations wait for backward elsewhere.
// In: tensors that autograd saves, and a store. Out: the same tensors, brought back when backward asks for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <weft/activation/saved_tensors.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::activation {

/// Where activations wait. Called on the threads that run forward and backward.
class ActivationStore {
 public:
  struct Kept {
    virtual ~Kept() = default;
    virtual at::Tensor reload() = 0;
    /// It will be asked for soon: begins to bring it back, beside the computation. reload() takes what has come, or
    /// let_go() says that nobody will.
    virtual void fetch() {}
    virtual void let_go() noexcept {}
  };
  virtual ~ActivationStore() = default;
  /// `tensor` has one dim and no gaps. Null: it stays where it is.
  virtual std::unique_ptr<Kept> keep(at::Tensor const& tensor) = 0;
};

/// Pinned host memory, for tensors of an accelerator. Those of the CPU are in host memory already, and stay.
///
/// [Note: copies beside the computation] A copy to the host runs on a stream of its own, once what has been queued so
/// far is done. The allocator keeps the device's memory until then. A tensor that is changed in place meanwhile is
/// found by its version, as autograd finds it: see Offloading. On the way back a stream of its own copies ahead, the
/// stream that computes waits for the copy, and the host does not.
class HostMemory final : public ActivationStore {
 public:
  std::unique_ptr<Kept> keep(at::Tensor const& tensor) override {
    if (tensor.is_cpu()) return nullptr;
    auto const device = tensor.device();
    c10::impl::VirtualGuardImpl const backend(device.type());
    auto const side = backend.getStreamFromGlobalPool(device);
    c10::Event filled(device.type());
    filled.record(backend.getStream(device));
    filled.block(side);
    auto kept = std::make_unique<OnHost>(
        at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true).requires_grad(false)), device);
    {
      c10::StreamGuard const on_side(side);
      kept->host.copy_(tensor, /*non_blocking=*/true);
    }
    backend.recordDataPtrOnStream(tensor.storage().data_ptr(), side);
    kept->copied.record(side);
    return kept;
  }

 private:
  struct OnHost final : Kept {
    OnHost(at::Tensor it, at::Device from)
        : host(std::move(it)), device(from), copied(from.type()), arrived(from.type()) {}
    at::Tensor reload() override {
      c10::impl::VirtualGuardImpl const backend(device.type());
      auto const computes = backend.getStream(device);
      if (!back.defined()) {
        copied.block(computes);
        return host.to(device, /*non_blocking=*/true);
      }
      arrived.block(computes);
      backend.recordDataPtrOnStream(back.storage().data_ptr(), computes);
      return std::exchange(back, at::Tensor());
    }
    void fetch() override {
      if (back.defined()) return;
      auto const side = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
      copied.block(side);
      c10::StreamGuard const on_side(side);
      back = host.to(device, /*non_blocking=*/true);
      arrived.record(side);
    }
    void let_go() noexcept override { back = at::Tensor(); }
    at::Tensor host, back;
    at::Device device;
    c10::Event copied, arrived;
  };
};

namespace detail {

/// A tensor that waits elsewhere, by what it takes to make it again.
struct OffloadedTensor {
  OffloadedTensor(std::unique_ptr<ActivationStore::Kept> it, at::Tensor const& tensor,
                  std::vector<int64_t> strides_there)
      : kept(std::move(it)),
        sizes(tensor.sizes().vec()),
        strides(std::move(strides_there)),
        version(torch::autograd::impl::version_counter(tensor)),
        saved_version(version.current_version()) {}

  at::Tensor reload(int pass) {
    if (version.current_version() != saved_version)
      fail<Error>("weft: a tensor of shape ", at::IntArrayRef(sizes),
                  " that OffloadActivations put away for backward has been changed in place since: it is at version ",
                  version.current_version(), ", and was at ", saved_version, "; backward needs it as it was");
    std::lock_guard const lock(mutex);
    if (std::exchange(asked_in, pass) != pass) num_asked = 0;
    auto const tensor = here.defined() ? here : kept->reload();
    here = ++num_asked < num_nodes && pass >= 0 ? tensor : at::Tensor();
    return tensor.as_strided(sizes, strides, 0);
  }
  void fetch(int pass) {
    std::lock_guard const lock(mutex);
    if (asked_in != pass) kept->fetch();
  }
  void let_go() {
    std::lock_guard const lock(mutex);
    here = at::Tensor();
    kept->let_go();
  }

  std::unique_ptr<ActivationStore::Kept> kept;
  std::vector<int64_t> sizes, strides;
  c10::VariableVersion version;
  uint32_t saved_version;
  int num_nodes = 1;   // that saved it
  std::mutex mutex{};  // threads may go through one graph
  at::Tensor here{};   // for the nodes of a pass that have not asked yet
  int asked_in = -1;   // a pass
  int num_asked = 0;
};

/// The calls of a model's units that have put something away.
///
/// [Note: back ahead of backward] When a pass asks for the first tensor of a call, all of that call and of the one
/// before it begin to come back, while it computes. What has come and is not used yet are therefore at most the tensors
/// of two calls that followed one another in forward; what a pass leaves behind of others is let go. Each call is
/// fetched once in a pass at most, so that calls inside of calls cost no more reads than before.
class ReloadAhead {
 public:
  struct Call {
    std::vector<std::weak_ptr<OffloadedTensor>> offloaded{};
    std::weak_ptr<Call> before{};
    int fetched_in = -1;  // a pass
  };

  std::shared_ptr<Call> begin_call() {
    auto call = std::make_shared<Call>();
    std::lock_guard const lock(mutex_);
    call->before = std::exchange(last_, call);
    return call;
  }
  void add(Call& call, std::shared_ptr<OffloadedTensor> const& offloaded) {
    std::lock_guard const lock(mutex_);
    call.offloaded.push_back(offloaded);
  }
  void enter(std::shared_ptr<Call> const& call, int pass) {
    if (pass < 0) return;  // nobody computes
    std::vector<std::shared_ptr<OffloadedTensor>> coming, leaving;
    auto const collect = [](Call const& from, auto& to) {
      for (auto one = from.offloaded.rbegin(); one != from.offloaded.rend(); ++one)  // as backward asks for them
        if (auto alive = one->lock()) to.push_back(std::move(alive));
    };
    {
      std::lock_guard const lock(mutex_);
      auto const current = current_.lock();
      if (pass == pass_ && current == call) return;
      auto const before = call->before.lock(), ahead = ahead_.lock();
      for (auto const& next : {call, before})
        if (next && std::exchange(next->fetched_in, pass) != pass) collect(*next, coming);
      for (auto const& old : {current, ahead})
        if (old && old != call && old != before) collect(*old, leaving);
      pass_ = pass, current_ = call, ahead_ = before;
    }
    for (auto const& one : leaving) one->let_go();
    for (auto const& one : coming) one->fetch(pass);
  }

 private:
  std::mutex mutex_;
  std::weak_ptr<Call> last_, current_, ahead_;
  int pass_ = -1;
};

/// While it lives, tensors that are saved on this thread wait in the store, each once, however many nodes save it. What
/// shares memory with a constant stays: it would be there anyway. Without a store everything stays.
class [[nodiscard]] Offloading {
 public:
  Offloading(std::shared_ptr<ActivationStore> store, std::vector<at::Tensor> const& constants,
             std::shared_ptr<ReloadAhead> const& ahead)
      : hooks_([saved = std::make_shared<SavedInCall>(std::move(store), constants, ahead)] {
          return std::make_unique<Hooks>(saved);
        }) {}

 private:
  /// Of one call.
  class SavedInCall {
   public:
    SavedInCall(std::shared_ptr<ActivationStore> store, std::vector<at::Tensor> const& constants,
                std::shared_ptr<ReloadAhead> it)
        : ahead(std::move(it)), call(ahead->begin_call()), store_(std::move(store)), constants_(constants) {}

    /// Null: the tensor stays.
    std::shared_ptr<OffloadedTensor> offload(at::Tensor const& tensor) {
      if (!store_ || tensor.layout() != at::kStrided || tensor.is_quantized() || !tensor.has_storage() ||
          tensor.numel() == 0 || tensor.is_inference() || is_constant(tensor))
        return nullptr;
      auto const* const storage = tensor.storage().unsafeGetStorageImpl();
      auto const& version = torch::autograd::impl::version_counter(tensor);
      for (auto const& one : offloaded_)
        if (one.storage._unsafe_get_target() == storage && one.offset == tensor.storage_offset() &&
            one.dtype == tensor.scalar_type() && one.offloaded->saved_version == version.current_version() &&
            tensor.sizes() == at::IntArrayRef(one.offloaded->sizes) && one.strides == tensor.strides()) {
          ++one.offloaded->num_nodes;
          return one.offloaded;
        }
      auto [flat, strides] = flattened(tensor);
      auto kept = store_->keep(flat);
      if (!kept) return nullptr;
      auto offloaded = std::make_shared<OffloadedTensor>(std::move(kept), tensor, std::move(strides));
      ahead->add(*call, offloaded);
      offloaded_.push_back({tensor.storage().getWeakStorageImpl(), tensor.storage_offset(), tensor.strides().vec(),
                            tensor.scalar_type(), offloaded});
      return offloaded;
    }

    std::shared_ptr<ReloadAhead> const ahead;
    std::shared_ptr<ReloadAhead::Call> const call;

   private:
    struct Known {
      c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // its identity isn't given to another one meanwhile
      int64_t offset;
      std::vector<int64_t> strides;
      at::ScalarType dtype;
      std::shared_ptr<OffloadedTensor> offloaded;
    };

    bool is_constant(at::Tensor const& tensor) const {
      for (auto const& constant : constants_)
        if (constant.has_storage() &&
            constant.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl())
          return true;
      return false;
    }
    /// The memory that the tensor lies in, if it has no gaps there (it may repeat elements), so that it comes back as
    /// it was; else a copy.
    static std::pair<at::Tensor, std::vector<int64_t>> flattened(at::Tensor const& tensor) {
      auto const dense = tensor.detach();
      int64_t span = 1;
      for (int64_t d = 0; d < dense.dim(); ++d) span += (dense.size(d) - 1) * dense.stride(d);
      if (span <= dense.numel()) return {dense.as_strided({span}, {1}), dense.strides().vec()};
      auto const copy = dense.contiguous();
      return {copy.view({-1}), copy.strides().vec()};
    }

    std::shared_ptr<ActivationStore> store_;
    std::vector<at::Tensor> const& constants_;
    std::vector<Known> offloaded_;
  };
  struct Hooks final : torch::autograd::SavedVariableHooks {
    explicit Hooks(std::shared_ptr<SavedInCall> it) : saved(std::move(it)) {}
    void call_pack_hook(at::Tensor const& tensor) override {
      offloaded = saved->offload(tensor);
      if (offloaded)
        ahead = saved->ahead, call = saved->call;
      else
        stays = tensor.detach();
      saved.reset();  // the graph holds what waits, and not what the call has seen
    }
    at::Tensor call_unpack_hook() override {
      if (!offloaded) return stays;
      int const pass = torch::autograd::get_current_graph_task_id();
      ahead->enter(call, pass);
      return offloaded->reload(pass);
    }
    std::shared_ptr<SavedInCall> saved;
    std::shared_ptr<OffloadedTensor> offloaded;
    std::shared_ptr<ReloadAhead> ahead;
    std::shared_ptr<ReloadAhead::Call> call;
    at::Tensor stays;
  };

  SavedTensorHooks hooks_;
};

}  // namespace detail
}  // namespace weft::activation
