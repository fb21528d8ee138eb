// activation/offload.ipp -- definitions of activation/offload.hpp.
#pragma once

#include <weft/activation/offload.hpp>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/variable.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::activation {

WEFT_INLINE auto HostMemory::keep(at::Tensor const& tensor) -> std::unique_ptr<Kept> {
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

WEFT_INLINE at::Tensor HostMemory::OnHost::reload() {
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

WEFT_INLINE void HostMemory::OnHost::fetch() {
  if (back.defined()) return;
  auto const side = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  copied.block(side);
  c10::StreamGuard const on_side(side);
  back = host.to(device, /*non_blocking=*/true);
  arrived.record(side);
}

}  // namespace weft::activation

namespace weft::inline v0::activation::detail {

WEFT_INLINE OffloadedTensor::OffloadedTensor(std::unique_ptr<ActivationStore::Kept> it, at::Tensor const& tensor,
                                             std::vector<int64_t> strides_there)
    : kept(std::move(it)),
      sizes(tensor.sizes().vec()),
      strides(std::move(strides_there)),
      version(torch::autograd::impl::version_counter(tensor)),
      saved_version(version.current_version()) {}

WEFT_INLINE at::Tensor OffloadedTensor::reload(int pass) {
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

WEFT_INLINE void ReloadAhead::enter(std::shared_ptr<Call> const& call, int pass) {
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

WEFT_INLINE Offloading::Offloading(std::shared_ptr<ActivationStore> store, std::vector<at::Tensor> const& constants,
                                   std::shared_ptr<ReloadAhead> const& ahead)
    : hooks_([saved = std::make_shared<SavedInCall>(std::move(store), constants, ahead)] {
        return std::make_unique<Hooks>(saved);
      }) {}

WEFT_INLINE std::shared_ptr<OffloadedTensor> Offloading::SavedInCall::offload(at::Tensor const& tensor) {
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

WEFT_INLINE bool Offloading::SavedInCall::is_constant(at::Tensor const& tensor) const {
  for (auto const& constant : constants_)
    if (constant.has_storage() && constant.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl())
      return true;
  return false;
}

WEFT_INLINE std::pair<at::Tensor, std::vector<int64_t>> Offloading::SavedInCall::flattened(at::Tensor const& tensor) {
  auto const dense = tensor.detach();
  int64_t span = 1;
  for (int64_t d = 0; d < dense.dim(); ++d) span += (dense.size(d) - 1) * dense.stride(d);
  if (span <= dense.numel()) return {dense.as_strided({span}, {1}), dense.strides().vec()};
  auto const copy = dense.contiguous();
  return {copy.view({-1}), copy.strides().vec()};
}

WEFT_INLINE void Offloading::Hooks::call_pack_hook(at::Tensor const& tensor) {
  offloaded = saved->offload(tensor);
  if (offloaded)
    ahead = saved->ahead, call = saved->call;
  else
    stays = tensor.detach();
  saved.reset();  // the graph holds what waits, and not what the call has seen
}

}  // namespace weft::activation::detail
