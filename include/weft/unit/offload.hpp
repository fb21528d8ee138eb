// unit/offload.hpp -- activations wait for backward elsewhere.
// In: tensors that autograd saves, and a store. Out: the same tensors, brought back when backward asks for them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <weft/core/error.hpp>
#include <weft/unit/saved_tensors.hpp>

namespace weft::unit {

/// Where activations wait. Called on the threads that run forward and backward.
class ActivationStore {
 public:
  struct Kept {
    virtual ~Kept() = default;
    virtual at::Tensor bring_back() = 0;
  };
  virtual ~ActivationStore() = default;
  /// `tensor` has one dim and no gaps. Null: it stays where it is.
  virtual std::unique_ptr<Kept> keep(at::Tensor const& tensor) = 0;
};

/// Pinned host memory, for tensors of an accelerator. Those of the CPU are in host memory already, and stay.
///
/// [Note: copies beside the computation] A copy to the host runs on a stream of its own, once what has been queued so far is done. The
/// allocator keeps the device's memory until then. A tensor that is changed in place meanwhile is found by its version, as autograd
/// finds it: see Offloading. On the way back the stream that computes waits for the copy, and the host does not.
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
    auto kept = std::make_unique<OnHost>(at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true).requires_grad(false)), device);
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
    OnHost(at::Tensor it, at::Device from) : host(std::move(it)), device(from), copied(from.type()) {}
    at::Tensor bring_back() override {
      copied.block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
      return host.to(device, /*non_blocking=*/true);
    }
    at::Tensor host;
    at::Device device;
    c10::Event copied;
  };
};

/// Files in a directory, one a tensor, gone as soon as backward is done with it. Reads and writes wait.
class FilesBelow final : public ActivationStore {
 public:
  explicit FilesBelow(std::filesystem::path directory) : directory_(std::move(directory)) {
    if (!std::filesystem::is_directory(directory_)) fail<ConfigurationError>("weft: activations cannot wait below ", directory_.string(), ", which is no directory: create it first");
  }
  std::unique_ptr<Kept> keep(at::Tensor const& tensor) override {
    auto kept = std::make_unique<InFile>(directory_ / ("weft_activation_" + std::to_string(::getpid()) + "_" + std::to_string(next_++)), tensor);
    auto const bytes = tensor.cpu();
    std::ofstream file(kept->path, std::ios::binary);
    file.write(static_cast<char const*>(bytes.const_data_ptr()), static_cast<std::streamsize>(bytes.nbytes()));
    file.close();
    if (!file) fail<Error>("weft: ", bytes.nbytes(), " bytes of activations cannot be written to ", kept->path.string(), ": is there space, and may this process write there?");
    return kept;
  }

 private:
  struct InFile final : Kept {
    InFile(std::filesystem::path to, at::Tensor const& tensor) : path(std::move(to)), numel(tensor.numel()), options(tensor.options().requires_grad(false)) {}
    ~InFile() override {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
    }
    at::Tensor bring_back() override {
      auto tensor = at::empty({numel}, options.device(at::kCPU));
      std::ifstream file(path, std::ios::binary);
      file.read(static_cast<char*>(tensor.mutable_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
      if (!file) fail<Error>("weft: ", tensor.nbytes(), " bytes of activations cannot be read from ", path.string(), ": something else removed or cut the file");
      return tensor.to(options.device());
    }
    std::filesystem::path path;
    int64_t numel;
    at::TensorOptions options;
  };
  std::filesystem::path directory_;
  [[gnu::visibility("default")]] static inline std::atomic<std::uint64_t> next_ = 0;
};

namespace detail {

/// While it lives, tensors that are saved on this thread wait in the store, each once, however many nodes save it. What shares memory
/// with a constant stays: it would be there anyway.
class [[nodiscard]] Offloading {
 public:
  Offloading(std::shared_ptr<ActivationStore> store, std::vector<at::Tensor> const& constants)
      : hooks_([seen = std::make_shared<Seen>(std::move(store), constants)] { return std::make_unique<Hooks>(seen); }) {}

 private:
  /// A tensor that has gone, by what it takes to make it again.
  struct Gone {
    std::unique_ptr<ActivationStore::Kept> kept;
    std::vector<int64_t> sizes, strides;
    c10::VariableVersion version;
    uint32_t saved_version;

    at::Tensor bring_back() const {
      if (version.current_version() != saved_version)
        fail<Error>("weft: a tensor of shape ", at::IntArrayRef(sizes), " that OffloadActivations put away for backward has been changed in place since: it is at version ", version.current_version(), ", and was at ",
                    saved_version, "; backward needs it as it was");
      return kept->bring_back().as_strided(sizes, strides, 0);
    }
  };
  class Seen {
   public:
    Seen(std::shared_ptr<ActivationStore> store, std::vector<at::Tensor> const& constants) : store_(std::move(store)), constants_(constants) {}

    /// Null: the tensor stays.
    std::shared_ptr<Gone> put_away(at::Tensor const& tensor) {
      if (tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.numel() == 0 || tensor.is_inference() || is_constant(tensor)) return nullptr;
      auto const* const storage = tensor.storage().unsafeGetStorageImpl();
      auto const& version = torch::autograd::impl::version_counter(tensor);
      for (auto const& one : gone_)
        if (one.storage._unsafe_get_target() == storage && one.offset == tensor.storage_offset() && one.dtype == tensor.scalar_type() && one.gone->saved_version == version.current_version() &&
            tensor.sizes() == at::IntArrayRef(one.gone->sizes) && one.strides == tensor.strides())
          return one.gone;
      auto [flat, strides] = flattened(tensor);
      auto kept = store_->keep(flat);
      if (!kept) return nullptr;
      auto gone = std::make_shared<Gone>(Gone{std::move(kept), tensor.sizes().vec(), std::move(strides), version, version.current_version()});
      gone_.push_back({tensor.storage().getWeakStorageImpl(), tensor.storage_offset(), tensor.strides().vec(), tensor.scalar_type(), gone});
      return gone;
    }

   private:
    struct Known {
      c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // its identity isn't given to another one meanwhile
      int64_t offset;
      std::vector<int64_t> strides;
      at::ScalarType dtype;
      std::shared_ptr<Gone> gone;
    };

    bool is_constant(at::Tensor const& tensor) const {
      for (auto const& constant : constants_)
        if (constant.has_storage() && constant.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) return true;
      return false;
    }
    /// The memory that the tensor lies in, if it has no gaps there (it may repeat elements), so that it comes back as it was; else a copy.
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
    std::vector<Known> gone_;
  };
  struct Hooks final : torch::autograd::SavedVariableHooks {
    explicit Hooks(std::shared_ptr<Seen> it) : seen(std::move(it)) {}
    void call_pack_hook(at::Tensor const& tensor) override {
      gone = seen->put_away(tensor);
      if (!gone) stays = tensor.detach();
      seen.reset();  // the graph holds what waits, and not what the call has seen
    }
    at::Tensor call_unpack_hook() override { return gone ? gone->bring_back() : stays; }
    std::shared_ptr<Seen> seen;
    std::shared_ptr<Gone> gone;
    at::Tensor stays;
  };

  SavedTensorHooks hooks_;
};

}  // namespace detail
}  // namespace weft::unit
