// init/deferred_operations.ipp -- definitions of init/deferred_operations.hpp.
#pragma once

#include <weft/init/deferred_operations.hpp>

#include <set>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <weft/core/build.hpp>
#include <weft/core/hash.hpp>

namespace weft::inline v0::init {

WEFT_INLINE c10::Storage DeferredOperations::make_storage(std::size_t bytes, c10::Device device) {
  auto* const allocator = detail::allocator_for(device);
  auto const make = [&](c10::DataPtr data) {
    return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
                                                 std::move(data), allocator, /*resizable=*/true);
  };
  auto real = make({nullptr, new detail::Awaited{shared_from_this(), slots_.size()}, detail::forget_awaited(), device});
  detail::refuse_access(*real);
  slots_.push_back({.stand_in = make({nullptr, device}),
                    .real = c10::weak_intrusive_ptr<c10::StorageImpl>(real),
                    .scope = num_scopes_});
  bytes_deferred_ += bytes;
  return c10::Storage(std::move(real));
}

WEFT_INLINE at::Tensor DeferredOperations::make_tensor(at::Tensor const& shape, c10::Device device) {
  auto storage = make_storage(shape.storage().nbytes(), device);
  auto tensor = detail::make_marked(
      storage, c10::DispatchKeySet(c10::computeDispatchKey(shape.scalar_type(), at::kStrided, device)), shape);
  slots_.back().tensors.emplace_back(tensor.getIntrusivePtr());
  return tensor;
}

WEFT_INLINE void DeferredOperations::record(Recorded it, bool without_draws) {
  Entry entry{
      .name = std::move(it.name), .run = std::move(it.run), .arguments = {}, .uses = {}, .made = {}, .around = {}};
  bool unknown = false;
  auto const use = [&](std::size_t slot, bool overwrites) {
    for (auto& known : entry.uses)
      if (known.slot == slot) {
        known.overwrites = known.overwrites && overwrites;
        return;
      }
    entry.uses.push_back({slot, overwrites});
  };
  for (auto const& tensor : it.written) {
    auto const slot = detail::awaited(tensor)->slot;
    bool const overwrites = it.overwrites && is_all_of_storage(tensor);
    use(slot, overwrites);
    unknown = unknown || (!overwrites && slots_[slot].unknown);
  }
  for (auto const& tensor : it.read) {
    if (auto const* const from = detail::awaited(tensor)) {
      use(from->slot, false);
      unknown = unknown || slots_[from->slot].unknown;
    } else if (!tensor.is_inference() && !is_borrowed(tensor)) {
      entry.outside.emplace_back(tensor, tensor._version());
    }
  }
  for (auto const& tensor : it.made) use(detail::awaited(tensor)->slot, true);

  unknown = unknown || (without_draws && it.generator);
  for (auto const* list : {&it.written, &it.made})
    for (auto const& tensor : *list) slots_[detail::awaited(tensor)->slot].unknown = unknown;
  if (unknown) return;

  if (it.generator) note_draw(track_of(*it.generator), entry);
  for (auto& argument : it.arguments)
    entry.arguments.push_back(
        detail::with_tensors(argument, [&](at::Tensor const& tensor) { return stand_in_of(tensor); }));
  for (auto const& tensor : it.made) entry.made.push_back({detail::awaited(tensor)->slot, stand_in_of(tensor)});
  for (auto const& [slot, overwrites] : entry.uses) slots_[slot].uses.push_back(entries_.size());
  for (auto const& [tensor, version] : entry.outside)
    if (tensor.has_storage()) outside_.insert(tensor.storage().unsafeGetStorageImpl());
  entry.scope = num_scopes_;
  entries_.push_back(std::move(entry));
}

WEFT_INLINE void DeferredOperations::read(std::vector<at::Tensor> const& tensors, std::string const& reader) {
  Reading const reading(*this, reader);
  std::set<std::size_t> slots, entries;
  std::vector<std::size_t> next;
  for (auto const& tensor : tensors)
    if (auto const* const found = detail::awaited(tensor); found && slots.insert(found->slot).second)
      next.push_back(found->slot);
  while (!next.empty()) {
    auto const& slot = slots_[next.back()];
    next.pop_back();
    for (std::size_t i = slot.num_done; i < slot.uses.size(); ++i) {
      auto const& entry = entries_[slot.uses[i]];
      if (entry.generator) return replay(entries_.size(), {});
      entries.insert(slot.uses[i]);
      for (auto const& use : entry.uses)
        if (slots.insert(use.slot).second) next.push_back(use.slot);
    }
  }
  c10::impl::ExcludeDispatchKeyGuard const no_recording(c10::DispatchKey::DeferredInit);
  at::NoGradGuard const no_grad;
  auto const alive = shared_from_this();
  for (auto const entry : entries) run(entry, {});
  touched_.clear();
  for (auto const slot : slots) complete(slots_[slot], {});
}

WEFT_INLINE void DeferredOperations::replay_scopes_of(std::vector<at::Tensor> const& tensors,
                                                      Completed const& completed) {
  std::size_t last = 0;
  bool any = false;
  std::unordered_set<c10::StorageImpl const*> storages;
  for (auto const& tensor : tensors)
    if (tensor.has_storage()) storages.insert(tensor.storage().unsafeGetStorageImpl());
  for (auto const& slot : slots_) {
    if (auto const real = slot.real.lock(); !real || !storages.count(real.get())) continue;
    any = true;
    last = std::max(last, slot.uses.empty() ? slot.scope : entries_[slot.uses.back()].scope);
  }
  if (any) replay(last < scope_ends_.size() ? scope_ends_[last] : entries_.size(), completed, last);
}

WEFT_INLINE bool DeferredOperations::is_uninitialized(at::Tensor const& tensor) const {
  auto const* const found = detail::awaited(tensor);
  return found && (slots_[found->slot].unknown || slots_[found->slot].uses.empty());
}

WEFT_INLINE std::uint64_t DeferredOperations::fingerprint() const {
  core::Hash hash;
  for (auto const& entry : entries_) {
    if (entry.done) continue;
    hash.add(entry.name);
    for (auto const& use : entry.uses) hash.add(std::uint64_t{use.slot});
  }
  return hash.value();
}

WEFT_INLINE std::size_t DeferredOperations::num_pending() const {
  return static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](auto const& entry) { return !entry.done; }));
}

WEFT_INLINE bool DeferredOperations::is_over() const {
  return has_failed_ || (num_pending() == 0 && std::all_of(slots_.begin(), slots_.end(), [](auto const& slot) {
                           return slot.complete || slot.real.expired();
                         }));
}

WEFT_INLINE bool DeferredOperations::is_borrowed(at::Tensor const& tensor) {
  return tensor.has_storage() && tensor.storage().nbytes() > 0 && !tensor.is_meta() &&
         !tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_context();
}

WEFT_INLINE at::Tensor DeferredOperations::stand_in_of(at::Tensor const& tensor) const {
  auto const* const from = detail::awaited(tensor);
  if (!from) return is_borrowed(tensor) ? tensor.detach().clone() : tensor.detach();
  auto copy = tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                    /*allow_tensor_metadata_change=*/true);
  copy->set_storage_keep_dtype(c10::Storage(slots_[from->slot].stand_in));
  return at::Tensor(std::move(copy));
}

WEFT_INLINE std::size_t DeferredOperations::track_of(at::Generator const& generator) {
  for (std::size_t i = 0; i < tracks_.size(); ++i)
    if (tracks_[i].generator == generator) return i;
  tracks_.push_back({.generator = generator});
  return tracks_.size() - 1;
}

WEFT_INLINE void DeferredOperations::note_draw(std::size_t index, Entry& entry) {
  auto& track = tracks_[index];
  auto now = state_of(track.generator);
  bool const is_first = track.pending == 0;
  if (is_first) track.next = now;
  if (auto const shown = stand_ins_.find(hash_of(now)); shown != stand_ins_.end()) {
    if (is_first || track.moved || !at::equal(now, track.seen)) refer_to(shown->second, entry);
  } else if (!is_first && (track.moved || !at::equal(now, track.seen))) {
    entry.state = now;
  }
  now = track.seen = at::Tensor();
  entry.generator = index;
  ++track.pending;
  track.moved = false;
  track.last = entries_.size();
  {
    std::lock_guard const lock(track.generator.mutex());
    track.generator.set_current_seed(hash_of(track.next) + track.last);
  }
  track.seen = state_of(track.generator);
  stand_ins_.emplace(hash_of(track.seen), track.last);
}

WEFT_INLINE void DeferredOperations::settle_generators() {
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    auto& track = tracks_[i];
    auto const shown = stand_ins_.find(hash_of(state_of(track.generator)));
    if (shown == stand_ins_.end()) continue;
    if (auto const draw = shown->second; track.pending == 0 || draw != track.last) {
      Entry set{.name = "set_state",
                .run = [](torch::jit::Stack&) {},
                .arguments = {},
                .uses = {},
                .made = {},
                .around = {},
                .generator = i};
      if (is_forgotten(draw))
        set.run = [name = entries_[draw].name](torch::jit::Stack&) { fail_forgotten(name); };
      else
        refer_to(draw, set);
      set.scope = num_scopes_;
      ++track.pending;
      entries_.push_back(std::move(set));
    }
    set_state(track.generator, track.next);
    track.seen = track.next;
  }
}

WEFT_INLINE void DeferredOperations::replay(std::size_t end, Completed const& completed, std::size_t last_scope) {
  c10::impl::ExcludeDispatchKeyGuard const no_recording(c10::DispatchKey::DeferredInit);
  at::NoGradGuard const no_grad;
  auto const alive = shared_from_this();  // the last storage that waits may be the last to hold the operations
  if (end == entries_.size()) {
    settle_generators();
    end = entries_.size();
  }
  struct Generators {
    explicit Generators(std::vector<Track>& it) : tracks(it) {
      for (auto& track : tracks) {
        if (track.pending == 0) continue;
        auto now = state_of(track.generator);
        track.moved = track.moved || !at::equal(now, track.seen);
        track.seen = std::move(now);
        set_state(track.generator, track.next);
      }
    }
    ~Generators() {
      for (auto& track : tracks) {
        if (!track.next.defined()) continue;
        track.next = state_of(track.generator);
        if (track.moved)
          set_state(track.generator, track.seen);
        else
          track.seen = track.next;
      }
    }
    std::vector<Track>& tracks;
  } const generators(tracks_);
  touched_.clear();
  for (; first_ < end; ++first_) {
    if (!entries_[first_].done) run(first_, completed);
    run_ready(completed);
  }
  if (std::all_of(entries_.begin(), entries_.end(), [](auto const& entry) { return entry.done; })) outside_.clear();
  for (auto& slot : slots_)
    if (slot.scope <= last_scope && slot.num_done == slot.uses.size()) complete(slot, completed);
}

WEFT_INLINE void DeferredOperations::run(std::size_t index, Completed const& completed) {
  auto& entry = entries_[index];
  for (auto const& use : entry.uses)
    if (!slots_[use.slot].has_memory && !is_made_by(entry, use.slot)) allocate(slots_[use.slot]);
  try {
    execute(entry);
  } catch (std::exception const& error) {
    has_failed_ = true;
    std::string const text = error.what();
    fail<ConfigurationError>("weft: initializing by ", entry.name,
                             " failed when it was replayed: ", text.substr(0, text.find('\n')));
  }
  entry.done = true;
  auto const uses = std::exchange(entry.uses, {});
  entry.run = nullptr;
  entry.arguments.clear();
  entry.made.clear();
  entry.outside.clear();
  for (auto const& use : uses) {
    auto& slot = slots_[use.slot];
    if (++slot.num_done == slot.uses.size()) {
      complete(slot, completed);
    } else {
      if (overwrites(slot.uses[slot.num_done], use.slot)) release(slot);
      touched_.push_back(use.slot);
    }
  }
}

WEFT_INLINE void DeferredOperations::run_ready(Completed const& completed) {
  while (!touched_.empty()) {
    auto const& slot = slots_[touched_.back()];
    std::vector<std::size_t> needed;
    if (slot.num_done == slot.uses.size() || !can_run(slot.uses[slot.num_done], needed)) {
      touched_.pop_back();
      continue;
    }
    for (auto const entry : needed) run(entry, completed);
  }
}

WEFT_INLINE bool DeferredOperations::can_run(std::size_t index, std::vector<std::size_t>& needed) const {
  std::set<std::size_t> found;
  std::vector<std::size_t> next{index};
  while (!next.empty()) {
    auto const at = next.back();
    next.pop_back();
    if (!found.insert(at).second) continue;
    if (entries_[at].generator) return false;
    for (auto const& use : entries_[at].uses) {
      auto const& slot = slots_[use.slot];
      auto const place = std::lower_bound(slot.uses.begin(), slot.uses.end(), at);
      if (place - slot.uses.begin() > static_cast<std::ptrdiff_t>(slot.num_done)) next.push_back(*std::prev(place));
    }
  }
  needed.assign(found.begin(), found.end());
  return true;
}

WEFT_INLINE bool DeferredOperations::is_made_by(Entry const& entry, std::size_t slot) {
  return std::any_of(entry.made.begin(), entry.made.end(), [&](auto const& made) { return made.slot == slot; });
}

WEFT_INLINE void DeferredOperations::execute(Entry& entry) {
  for (auto const& [tensor, version] : entry.outside)
    if (tensor._version() != version)
      fail<ConfigurationError>("it reads a tensor of ", tensor.sizes(),
                               " that was changed in place since: pass a clone");
  if (entry.generator) {
    auto& track = tracks_[*entry.generator];
    if (entry.after) entry.state = entries_[*entry.after].end;
    if (entry.state.defined()) set_state(track.generator, entry.state);
    --track.pending;
  }
  torch::jit::Stack stack = entry.arguments;
  {
    Surrounded const around(entry.around);
    entry.run(stack);
  }
  if (entry.is_referred_to) entry.end = state_of(tracks_[*entry.generator].generator);
  if (entry.made.empty()) return;
  std::vector<at::Tensor> made;
  for (auto const& value : stack)
    detail::for_each_tensor(value, [&](at::Tensor const& tensor) { made.push_back(tensor); });
  stack.clear();
  for (std::size_t i = 0; i < made.size(); ++i) place(std::move(made[i]), entry.made[i]);
}

WEFT_INLINE void DeferredOperations::place(at::Tensor made, Made const& expected) {
  auto const& stand_in = expected.tensor;
  auto& to = *stand_in.storage().unsafeGetStorageImpl();
  auto& from = *made.storage().unsafeGetStorageImpl();
  if (made.sizes() == stand_in.sizes() && made.strides() == stand_in.strides() && made.storage_offset() == 0 &&
      from.nbytes() == to.nbytes() && made.storage().use_count() == 1 && made.use_count() == 1 &&
      made.scalar_type() == stand_in.scalar_type()) {
    to.set_data_ptr_noswap(std::move(from._mutable_data_ptr_no_checks()));
  } else {
    to.set_data_ptr_noswap(detail::allocator_for(stand_in.device())->allocate(to.nbytes()));
    stand_in.copy_(made);
  }
  slots_[expected.slot].has_memory = true;
}

WEFT_INLINE void DeferredOperations::complete(Slot& slot, Completed const& completed) {
  if (std::exchange(slot.complete, true)) return;
  auto const real = slot.real.lock();
  if (real) {
    if (!slot.has_memory) allocate(slot);
    detail::allow_access(*real);
    real->set_data_ptr_noswap(std::move(slot.stand_in->_mutable_data_ptr_no_checks()));
    for (auto const& weak : slot.tensors)
      if (auto const tensor = weak.lock()) detail::unmark(*tensor);
    slot.tensors.clear();
    bytes_completed_ += real->nbytes();
  }
  release(slot);
  if (real && completed) completed(*real);
}

}  // namespace weft::init
