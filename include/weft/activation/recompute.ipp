// activation/recompute.ipp -- definitions of activation/recompute.hpp.
#pragma once

#include <weft/activation/recompute.hpp>

#include <torch/csrc/autograd/variable.h>

#include <weft/activation/recompute_scope.hpp>
#include <weft/core/build.hpp>

namespace weft::inline v0::activation::detail {

WEFT_INLINE void GeneratorsInUse::add(at::Generator const& generator) {
  if (generator.defined() && std::find(all_.begin(), all_.end(), generator) == all_.end()) all_.push_back(generator);
}

WEFT_INLINE AutocastState::AutocastState() : caches_(at::autocast::is_autocast_cache_enabled()) {
  for (auto const type : types)
    if (type == at::kCPU || at::hasCUDA())
      states_.push_back({type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
}

WEFT_INLINE void AutocastState::set() const {
  for (auto const& state : states_) {
    at::autocast::set_autocast_enabled(state.type, state.enabled);
    at::autocast::set_autocast_dtype(state.type, state.dtype);
  }
}

WEFT_INLINE void BufferState::restore() const {
  at::NoGradGuard const no_grad;
  for (std::size_t i = 0; i < values_.size(); ++i)
    buffers_[i].variable_data().copy_(values_[i]);  // no new version, as far as autograd knows
}

WEFT_INLINE Recomputation::Forward::Forward(Recomputation const& call) : around_(std::exchange(innermost, &call)) {
  if (around_ == nullptr || (around_->what_.unit_said == nullptr) == (call.what_.unit_said == nullptr)) return;
  auto const& unit = call.what_.unit_said ? call.what_ : around_->what_;
  if (!unit.unit_said->exchange(true))
    TORCH_WARN("weft: ", unit.what, " is recomputed by ActivationCheckpointing, and weft::checkpoint is called ",
               call.what_.unit_said ? "around" : "inside of",
               " it: what both hold runs once more for each; keep one of them");
}

WEFT_INLINE void Recomputation::Forgotten::call_pack_hook(at::Tensor const& tensor) {
  index = call->saved_.size();
  auto const& version = torch::autograd::impl::version_counter(tensor);
  call->saved_.push_back(
      {tensor.sizes().vec(), tensor.scalar_type(), tensor.device(), version, version.current_version()});
}

WEFT_INLINE at::Tensor Recomputation::take(std::size_t index) {
  std::unique_lock const lock(reruns_, longest_wait);
  if (!lock.owns_lock())
    fail<Error>("weft: ", what_.what, ": the re-run of another call, on another thread, has not ended for ",
                longest_wait.count(),
                " s: does a checkpointed function go backward through another one on an accelerator?");
  auto const& meta = saved_[index];
  if (meta.version.current_version() != meta.saved_version)
    fail<Error>("weft: ", what_.what, ": the ", index + 1, ". tensor that forward saved for backward, ",
                at::IntArrayRef(meta.sizes), " of ", meta.dtype,
                ", was modified by an inplace operation since: it is at version ", meta.version.current_version(),
                ", and was at ", meta.saved_version);
  if (index >= again_.size() || !again_[index].defined()) recompute();
  return std::exchange(again_[index], at::Tensor());
}

WEFT_INLINE void Recomputation::recompute() {
  again_.clear();
  RandomState const here(random_.generators());
  AutocastState const autocast_here;
  BufferState const buffers_here(what_.buffers);
  struct Restore {
    ~Restore() {
      random.restore();
      autocast.restore();
      buffers.restore();
    }
    RandomState const& random;
    AutocastState const& autocast;
    BufferState const& buffers;
  } const restore{here, autocast_here, buffers_here};
  random_.restore();
  autocast_.restore_without_cache();
  at::AutoGradMode const with_gradients(true);
  RecomputeScope const rerun;
  try {
    SavedTensorHooks const collecting([this] { return std::make_unique<Collected>(*this); });
    run();
  } catch (Stop const& stop) {
    if (stop.who != this) throw;
  }
  if (again_.size() < saved_.size())
    fail<Error>("weft: ", what_.what, ": forward saved ", saved_.size(), " tensors for backward, its re-run ",
                again_.size(),
                ": the function must do the same when it is called again (a counter, a value read "
                "from outside, a unit that was changed in between?)");
}

WEFT_INLINE void Recomputation::collect(at::Tensor const& tensor) {
  if (again_.size() == saved_.size()) return;  // a function that isn't left by an exception
  auto const& before = saved_[again_.size()];
  if (tensor.sizes() != at::IntArrayRef(before.sizes) || tensor.scalar_type() != before.dtype ||
      tensor.device() != before.device)
    fail<Error>("weft: ", what_.what, ": the ", again_.size() + 1, ". tensor that forward saved for backward was ",
                at::IntArrayRef(before.sizes), " of ", before.dtype, " on ", before.device, ", that of its re-run is ",
                tensor.sizes(), " of ", tensor.scalar_type(), " on ", tensor.device(),
                ": the function must do the same when it is called again");
  again_.push_back(tensor);
  if (again_.size() == saved_.size() && what_.stops_early) throw Stop{this};
}

}  // namespace weft::activation::detail
