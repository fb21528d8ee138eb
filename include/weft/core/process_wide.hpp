// core/process_wide.hpp -- what a process has once.
// In: a type of state. Out: one object of it, also for two shared objects of one program, and one thread at a time in
// it.
#pragma once

#include <mutex>

namespace weft::inline v0::core {

/// Made at the first use, and never destroyed: who uses it may be static itself.
template <class State>
[[gnu::visibility("default")]] inline auto& process_wide_state() {
  struct Locked {
    std::mutex mutex;
    State state;
  };
  static auto& locked = *new Locked;
  return locked;
}

/// What `use` returns of the process' State, of which there is one for each type. A State that is hidden would be one
/// for each shared object: -fvisibility=hidden hides types, and by them the templates that name them.
///   struct [[gnu::visibility("default")]] Known { std::unordered_set<void const*> modules; };
///   bool const is_new = core::process_wide<Known>([&](Known& known) { return known.modules.insert(module).second; });
template <class State, class Use>
auto process_wide(Use const& use) {
  auto& [mutex, state] = process_wide_state<State>();
  std::lock_guard const lock(mutex);
  return use(state);
}

}  // namespace weft::core
