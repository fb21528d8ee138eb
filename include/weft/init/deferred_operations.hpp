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
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/stack.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

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
  c10::Storage make_storage(std::size_t bytes, c10::Device device);

  /// A tensor of the program in such a storage.
  at::Tensor make_tensor(at::Tensor const& shape, c10::Device device);

  /// `without_draws`: draws are left out, and with them whatever depends on one.
  void record(Recorded it, bool without_draws);

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
  void read(std::vector<at::Tensor> const& tensors, std::string const& reader);
  /// The same for everything that was recorded: a generator has to move on.
  void read_all(std::string const& reader) {
    Reading const reading(*this, reader);
    replay(entries_.size(), {});
  }

  /// Replays to the end of the scopes in which something was done to these storages. Whatever else was made in them
  /// gets its memory as well.
  void replay_scopes_of(std::vector<at::Tensor> const& tensors, Completed const& completed);

  /// Of these storages, whether nothing has given them values, or only a draw that was left out.
  bool is_uninitialized(at::Tensor const& tensor) const;

  /// Equal on ranks whose programs did the same.
  std::uint64_t fingerprint() const;
  std::size_t bytes_deferred() const { return bytes_deferred_; }
  std::vector<EarlyRead> const& early_reads() const { return early_reads_; }
  std::size_t num_pending() const;

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

  bool is_over() const;

  // ---- recording -------------------------------------------------------------------------------------------------

  static bool is_all_of_storage(at::Tensor const& tensor) {
    return tensor.is_non_overlapping_and_dense() && tensor.nbytes() == tensor.storage().nbytes();
  }
  /// Memory that a program lends to LibTorch, as from_blob(pointer) does, may be gone when the operation runs.
  static bool is_borrowed(at::Tensor const& tensor);
  at::Tensor stand_in_of(at::Tensor const& tensor) const;

  std::size_t track_of(at::Generator const& generator);
  void note_draw(std::size_t index, Entry& entry);
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
  void settle_generators();
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

  void replay(std::size_t end, Completed const& completed, std::size_t last_scope = SIZE_MAX);

  void run(std::size_t index, Completed const& completed);
  /// Of the storages just used, what comes next and waits for no draw. See [Note: the order of a replay].
  void run_ready(Completed const& completed);
  /// Whether an entry waits for no draw; then it and what it waits for, in the order of the program.
  bool can_run(std::size_t index, std::vector<std::size_t>& needed) const;
  static bool is_made_by(Entry const& entry, std::size_t slot);
  bool overwrites(std::size_t entry, std::size_t slot) const {
    for (auto const& use : entries_[entry].uses)
      if (use.slot == slot) return use.overwrites;
    return false;
  }

  void execute(Entry& entry);
  /// Takes over the memory of what an operation has made, if it is laid out as expected and nobody else has it.
  void place(at::Tensor made, Made const& expected);

  void allocate(Slot& slot) {
    slot.stand_in->set_data_ptr_noswap(
        detail::allocator_for(slot.stand_in->device())->allocate(slot.stand_in->nbytes()));
    slot.has_memory = true;
  }
  void release(Slot& slot) {
    slot.stand_in->set_data_ptr_noswap({nullptr, slot.stand_in->device()});
    slot.has_memory = false;
  }
  void complete(Slot& slot, Completed const& completed);

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

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/init/deferred_operations.ipp>
#endif
