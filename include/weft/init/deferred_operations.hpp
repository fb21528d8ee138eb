// init/deferred_operations.hpp -- what is still to be done to initialize tensors that have no memory yet.
// In: operations and draws, in a program's order. Out: the same values and generator states, later, and each tensor's
// memory as soon as it is complete.
//
//   program   w1 = empty, w1.normal_, w2 = empty, w2.normal_, w1 *= 0.02, w2 *= 0.02
//   replay    w1.normal_, w1 *= 0.02, w1 is complete | w2.normal_, w2 *= 0.02, w2 is complete
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/equal.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <weft/core/error.hpp>
#include <weft/init/deferred_storage.hpp>

namespace weft::inline v0::init {

/// An operation that needed values before setup, and the bytes that got memory for it.
struct EarlyRead {
  std::string operation;
  std::size_t bytes = 0;
};

namespace detail {

template <class F>
void for_each_tensor(c10::IValue const& value, F&& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) f(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (c10::IValue const& element : value.toListRef()) for_each_tensor(element, f);
  }
}
/// The value with other tensors; lists are copied, since a program may go on to use its own.
template <class F>
c10::IValue with_tensors(c10::IValue const& value, F&& f) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(f(value.toTensor())) : value;
  if (!value.isTensorList() && !value.isOptionalTensorList()) return value;
  auto list = value.toList().copy();
  for (std::size_t i = 0; i < list.size(); ++i) list.set(i, with_tensors(list.get(i), f));
  return list;
}

}  // namespace detail

/// Storages of one thread that have no memory yet, and the operations that give them their values.
///
/// [Note: the order of a replay] Draws from a generator run in the order of the program. Everything else runs in the
/// order of the program as each storage sees it, and as early as that permits: what a constructor does to its
/// parameters in a second pass comes right after the draw, so that a parameter is complete before the next one has
/// memory. What is overwritten as a whole has no memory until then.
///
/// [Note: deferred operations own no storage of the program] A storage holds its operations, so they hold a stand-in of
/// it, in which they are replayed, and a weak reference. Memory moves from the stand-in to the storage. A storage that
/// the program has let go is a temporary.
class DeferredOperations : public std::enable_shared_from_this<DeferredOperations> {
 public:
  /// Called with a storage that has got its values.
  using Completed = std::function<void(c10::StorageImpl&)>;

  struct Recorded {
    std::string name;
    std::function<void(torch::jit::Stack&)> run;  // takes the arguments, leaves the results
    torch::jit::Stack arguments;
    std::vector<at::Tensor> written;           // of the arguments
    std::vector<at::Tensor> read;              // of the arguments, in other places
    std::vector<at::Tensor> made;              // by the operation, without memory as yet
    bool overwrites = false;                   // what it writes, without a look at it
    std::optional<at::Generator> generator{};  // that it draws from
  };

  /// This thread's: one sequence of draws over all scopes, also over those whose modules are gone.
  static std::shared_ptr<DeferredOperations> const& of_thread() {
    auto& operations = thread_operations();
    if (!operations || operations->is_over()) operations = std::make_shared<DeferredOperations>();
    return operations;
  }
  static std::shared_ptr<DeferredOperations> const& last_of_thread() { return thread_operations(); }

  /// A new storage of the program, without memory.
  c10::Storage make_storage(std::size_t bytes, c10::Device device) {
    auto* const allocator = detail::allocator_for(device);
    auto const make = [&](c10::DataPtr data) {
      return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
                                                   std::move(data), allocator, /*resizable=*/true);
    };
    auto real =
        make({nullptr, new detail::Awaited{shared_from_this(), slots_.size()}, detail::forget_awaited(), device});
    detail::refuse_access(*real);
    slots_.push_back({.stand_in = make({nullptr, device}),
                      .real = c10::weak_intrusive_ptr<c10::StorageImpl>(real),
                      .scope = num_scopes_});
    bytes_deferred_ += bytes;
    return c10::Storage(std::move(real));
  }

  /// A tensor of the program in such a storage.
  at::Tensor make_tensor(at::Tensor const& shape, c10::Device device) {
    auto storage = make_storage(shape.storage().nbytes(), device);
    auto tensor = detail::make_marked(
        storage, c10::DispatchKeySet(c10::computeDispatchKey(shape.scalar_type(), at::kStrided, device)), shape);
    slots_.back().tensors.emplace_back(tensor.getIntrusivePtr());
    return tensor;
  }

  /// `without_draws`: draws are left out, and with them whatever depends on one.
  void record(Recorded it, bool without_draws) {
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

  /// The end of a scope in which tensors were made.
  void end_scope() {
    settle_generators();
    scope_ends_.resize(++num_scopes_, entries_.size());
  }

  /// Whether operations wait that read this tensor, which has memory, as it is now.
  bool reads(at::Tensor const& tensor) const {
    return tensor.has_storage() && outside_.count(tensor.storage().unsafeGetStorageImpl()) > 0;
  }
  bool has_draws() const {
    return std::any_of(tracks_.begin(), tracks_.end(), [](auto const& track) { return track.pending > 0; });
  }

  /// Somebody reads these tensors, so they get their values now, with what that takes: if it takes no draw, only the
  /// operations that are connected with them, otherwise all operations as far as they were recorded.
  void read(std::vector<at::Tensor> const& tensors, std::string const& reader) {
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
  /// The same for everything that was recorded: a generator has to move on.
  void read_all(std::string const& reader) {
    Reading const reading(*this, reader);
    replay(entries_.size(), {});
  }

  /// Replays to the end of the scopes in which something was done to these storages. Whatever else was made in them
  /// gets its memory as well.
  void replay_scopes_of(std::vector<at::Tensor> const& tensors, Completed const& completed) {
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

  /// Of these storages, whether nothing has given them values, or only a draw that was left out.
  bool is_uninitialized(at::Tensor const& tensor) const {
    auto const* const found = detail::awaited(tensor);
    return found && (slots_[found->slot].unknown || slots_[found->slot].uses.empty());
  }

  /// Equal on ranks whose programs did the same.
  std::uint64_t fingerprint() const {
    std::uint64_t hash = 14695981039346656037u;
    auto const add = [&hash](std::uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
    for (auto const& entry : entries_) {
      if (entry.done) continue;
      for (unsigned char const byte : entry.name) add(byte);
      for (auto const& use : entry.uses) add(use.slot);
    }
    return hash;
  }
  std::size_t bytes_deferred() const { return bytes_deferred_; }
  std::vector<EarlyRead> const& early_reads() const { return early_reads_; }
  std::size_t num_pending() const {
    return static_cast<std::size_t>(
        std::count_if(entries_.begin(), entries_.end(), [](auto const& entry) { return !entry.done; }));
  }

 private:
  struct Use {
    std::size_t slot;
    bool overwrites;
  };
  struct Made {
    std::size_t slot;
    at::Tensor tensor;  // a stand-in
  };
  /// What an operation takes from where it is called.
  struct Surroundings {
    caffe2::TypeMeta default_dtype = at::get_default_dtype();
    bool inference = c10::InferenceMode::is_enabled();
  };
  class [[nodiscard]] Surrounded {
   public:
    explicit Surrounded(Surroundings const& around) {
      if (around.inference) inference_.emplace();
      if (around.default_dtype != before_) at::set_default_dtype(around.default_dtype);
    }
    ~Surrounded() {
      if (at::get_default_dtype() != before_) at::set_default_dtype(before_);
    }
    Surrounded(Surrounded const&) = delete;
    Surrounded& operator=(Surrounded const&) = delete;

   private:
    caffe2::TypeMeta before_ = at::get_default_dtype();
    std::optional<c10::InferenceMode> inference_{};
  };
  struct Entry {
    std::string name;
    std::function<void(torch::jit::Stack&)> run;
    torch::jit::Stack arguments;
    std::vector<Use> uses;
    std::vector<Made> made;
    Surroundings around;
    std::optional<std::size_t> generator{};
    at::Tensor state{};                                      // that the program gave the generator before
    std::optional<std::size_t> after{};                      // this draw's end, which the program gave it before
    bool is_referred_to = false;                             // by another's `after`
    at::Tensor end{};                                        // the state that a draw which is referred to has left
    std::vector<std::pair<at::Tensor, uint32_t>> outside{};  // tensors that had memory, with their versions
    std::size_t scope = 0;
    bool done = false;
  };
  struct Slot {
    c10::intrusive_ptr<c10::StorageImpl> stand_in;
    c10::weak_intrusive_ptr<c10::StorageImpl> real;
    std::size_t scope;
    std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> tensors{};
    std::vector<std::size_t> uses{};  // entries, in the order of the program
    std::size_t num_done = 0;
    bool unknown = false;  // holds what a draw that was left out would have given
    bool has_memory = false;
    bool complete = false;
  };
  /// [Note: draws come from where they would have come] A generator does not move while draws are recorded; they are
  /// replayed from the state that it had, and leave it where the program would have. Had the program set it meanwhile,
  /// by a seed or by draws that were not recorded, then it stays as that left it. In a scope the generator shows a
  /// stand-in after each draw, so that a program which saves its state and sets it again, or copies the generator,
  /// means the end of that draw.
  struct Track {
    at::Generator generator;
    at::Tensor next{};   // what the next draw begins with
    at::Tensor seen{};   // where the program had it when we last looked
    bool moved = false;  // by the program, after all draws that were recorded
    std::size_t pending = 0;
    std::size_t last = 0;  // draw
  };
  static std::shared_ptr<DeferredOperations>& thread_operations();

  struct Reading {
    Reading(DeferredOperations& it, std::string reader) : operations(it), who(std::move(reader)) {}
    ~Reading() { operations.early_reads_.push_back({std::move(who), operations.bytes_completed_ - before}); }
    DeferredOperations& operations;
    std::string who;
    std::size_t before = operations.bytes_completed_;
  };

  bool is_over() const {
    return has_failed_ || (num_pending() == 0 && std::all_of(slots_.begin(), slots_.end(), [](auto const& slot) {
                             return slot.complete || slot.real.expired();
                           }));
  }

  // ---- recording -------------------------------------------------------------------------------------------------

  static bool is_all_of_storage(at::Tensor const& tensor) {
    return tensor.is_non_overlapping_and_dense() && tensor.nbytes() == tensor.storage().nbytes();
  }
  /// Memory that a program lends to LibTorch, as from_blob(pointer) does, may be gone when the operation runs.
  static bool is_borrowed(at::Tensor const& tensor) {
    return tensor.has_storage() && tensor.storage().nbytes() > 0 && !tensor.is_meta() &&
           !tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_context();
  }
  at::Tensor stand_in_of(at::Tensor const& tensor) const {
    auto const* const from = detail::awaited(tensor);
    if (!from) return is_borrowed(tensor) ? tensor.detach().clone() : tensor.detach();
    auto copy = tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                      /*allow_tensor_metadata_change=*/true);
    copy->set_storage_keep_dtype(c10::Storage(slots_[from->slot].stand_in));
    return at::Tensor(std::move(copy));
  }

  std::size_t track_of(at::Generator const& generator) {
    for (std::size_t i = 0; i < tracks_.size(); ++i)
      if (tracks_[i].generator == generator) return i;
    tracks_.push_back({.generator = generator});
    return tracks_.size() - 1;
  }
  void note_draw(std::size_t index, Entry& entry) {
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
  void refer_to(std::size_t draw, Entry& entry) {
    if (is_forgotten(draw)) fail_forgotten(entries_[draw].name);
    entries_[draw].is_referred_to = true;
    entry.after = draw;
  }
  /// Nobody had asked for the state that it left when it ran.
  bool is_forgotten(std::size_t draw) const { return entries_[draw].done && !entries_[draw].end.defined(); }
  [[noreturn]] static void fail_forgotten(std::string const& name) {
    fail<ConfigurationError>("weft: a generator was given a state that it had while ", name,
                             " was deferred, and values have been read since: read no values in between, or build "
                             "under a scope with {.deferred = false}");
  }
  /// Generators show no stand-in any more. Where it is not the last draw's, its meaning is recorded; an error is for
  /// setup, since a scope may be ending.
  void settle_generators() {
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
  static std::uint64_t hash_of(at::Tensor const& state) {
    return std::hash<std::string_view>{}({static_cast<char const*>(state.const_data_ptr()), state.nbytes()});
  }
  static at::Tensor state_of(at::Generator& generator) {
    std::lock_guard const lock(generator.mutex());
    return generator.get_state();
  }
  static void set_state(at::Generator& generator, at::Tensor const& state) {
    std::lock_guard const lock(generator.mutex());
    generator.set_state(state);
  }

  // ---- replaying -------------------------------------------------------------------------------------------------

  void replay(std::size_t end, Completed const& completed, std::size_t last_scope = SIZE_MAX) {
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

  void run(std::size_t index, Completed const& completed) {
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
  /// Of the storages just used, what comes next and waits for no draw. See [Note: the order of a replay].
  void run_ready(Completed const& completed) {
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
  /// Whether an entry waits for no draw; then it and what it waits for, in the order of the program.
  bool can_run(std::size_t index, std::vector<std::size_t>& needed) const {
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
  static bool is_made_by(Entry const& entry, std::size_t slot) {
    return std::any_of(entry.made.begin(), entry.made.end(), [&](auto const& made) { return made.slot == slot; });
  }
  bool overwrites(std::size_t entry, std::size_t slot) const {
    for (auto const& use : entries_[entry].uses)
      if (use.slot == slot) return use.overwrites;
    return false;
  }

  void execute(Entry& entry) {
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
  /// Takes over the memory of what an operation has made, if it is laid out as expected and nobody else has it.
  void place(at::Tensor made, Made const& expected) {
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

  void allocate(Slot& slot) {
    slot.stand_in->set_data_ptr_noswap(
        detail::allocator_for(slot.stand_in->device())->allocate(slot.stand_in->nbytes()));
    slot.has_memory = true;
  }
  void release(Slot& slot) {
    slot.stand_in->set_data_ptr_noswap({nullptr, slot.stand_in->device()});
    slot.has_memory = false;
  }
  void complete(Slot& slot, Completed const& completed) {
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

  std::vector<Entry> entries_;
  std::vector<Slot> slots_;
  std::vector<Track> tracks_;
  std::unordered_map<std::uint64_t, std::size_t>
      stand_ins_;  // hashes of states, and the draws that they stand for the end of
  std::vector<std::size_t> scope_ends_;
  std::size_t num_scopes_ = 0;
  std::size_t first_ = 0;  // all entries before it are done
  std::size_t bytes_deferred_ = 0;
  std::size_t bytes_completed_ = 0;
  std::vector<EarlyRead> early_reads_;
  bool has_failed_ = false;                              // then nothing new goes on it
  std::vector<std::size_t> touched_;                     // slots whose next entry may be ready
  std::unordered_set<c10::StorageImpl const*> outside_;  // that entries read
};

[[gnu::visibility("default")]] inline std::shared_ptr<DeferredOperations>& DeferredOperations::thread_operations() {
  static auto first = +[]() -> std::shared_ptr<DeferredOperations>& {  // see [Note: one in a process]
    static thread_local std::shared_ptr<DeferredOperations> operations;
    return operations;
  };
  return first();
}

}  // namespace weft::init
