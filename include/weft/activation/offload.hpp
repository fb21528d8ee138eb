// activation/offload.hpp -- activations wait for backward elsewhere.
// In: tensors that autograd saves, and a store. Out: the same tensors, brought back when backward asks for them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <c10/core/Event.h>
#include <torch/csrc/autograd/graph_task.h>

#include <weft/activation/saved_tensors.hpp>

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
  std::unique_ptr<Kept> keep(at::Tensor const& tensor) override;

 private:
  struct OnHost final : Kept {
    OnHost(at::Tensor it, at::Device from)
        : host(std::move(it)), device(from), copied(from.type()), arrived(from.type()) {}
    at::Tensor reload() override;
    void fetch() override;
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
                  std::vector<int64_t> strides_there);

  at::Tensor reload(int pass);
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
  void enter(std::shared_ptr<Call> const& call, int pass);

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
             std::shared_ptr<ReloadAhead> const& ahead);

 private:
  /// Of one call.
  class SavedInCall {
   public:
    SavedInCall(std::shared_ptr<ActivationStore> store, std::vector<at::Tensor> const& constants,
                std::shared_ptr<ReloadAhead> it)
        : ahead(std::move(it)), call(ahead->begin_call()), store_(std::move(store)), constants_(constants) {}

    /// Null: the tensor stays.
    std::shared_ptr<OffloadedTensor> offload(at::Tensor const& tensor);

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

    bool is_constant(at::Tensor const& tensor) const;
    /// The memory that the tensor lies in, if it has no gaps there (it may repeat elements), so that it comes back as
    /// it was; else a copy.
    static std::pair<at::Tensor, std::vector<int64_t>> flattened(at::Tensor const& tensor);

    std::shared_ptr<ActivationStore> store_;
    std::vector<at::Tensor> const& constants_;
    std::vector<Known> offloaded_;
  };
  struct Hooks final : torch::autograd::SavedVariableHooks {
    explicit Hooks(std::shared_ptr<SavedInCall> it) : saved(std::move(it)) {}
    void call_pack_hook(at::Tensor const& tensor) override;
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

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/activation/offload.ipp>
#endif
