// fabric/turns.hpp -- rank 0 first, then the others.
// In: something that one rank should have done before the others do it: a download, a cache. Out: what it returned, on each rank.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include <c10/util/Exception.h>

#include <weft/comm/communicator.hpp>
#include <weft/comm/turn.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0 {

struct FirstOptions {
  bool local = false;                 // local rank 0 of each node goes first, not rank 0 of the world: for what nodes don't share
  std::chrono::milliseconds limit{};  // how long the others wait; 0: LaunchOptions::collective_timeout
};

namespace fabric {

/// The part of Fabric in which ranks take turns.
template <class Derived>
class Turns {
 public:
  /// Calls `function` on rank 0, then on the others, and returns what it returns. If rank 0's throws, the others throw an error that says what, and
  /// don't call theirs. All ranks call alike; collective calls inside of it are errors.
  ///
  ///   auto text = fabric.rank_zero_first([] { return download_unless_there("corpus.txt"); });
  ///
  /// A function, not a guard: a guard's destructor would not know what was thrown.
  template <class Function>
    requires std::invocable<Function&>
  std::invoke_result_t<Function&> rank_zero_first(Function&& function, FirstOptions const& options = {}) {
    auto& session = static_cast<Derived&>(*this).session();
    if (session.joined) fail<CommunicationError>("weft: rank_zero_first: inside of fabric.join ranks that are through would be missing: call it before or after the join");
    Inside const inside(*this);
    comm::Turn const turn(session, "rank_zero_first", options.local, inside.name);
    if (!turn.has_others()) return std::invoke(function);
    if (!turn.is_first()) {
      turn.wait(options.limit);
      return std::invoke(function);
    }
    try {
      comm::Communicator::Closed const alone(*session.world, "inside of rank_zero_first, where the other ranks wait for this one to be through; make the call after it");
      if constexpr (std::is_void_v<std::invoke_result_t<Function&>>) {
        std::invoke(function);
        turn.done();
      } else {
        auto&& result = std::invoke(function);
        turn.done();
        return std::forward<std::invoke_result_t<Function&>>(result);
      }
    } catch (c10::Error const& error) {
      turn.failed(error.what_without_backtrace());
      throw;
    } catch (std::exception const& error) {
      turn.failed(error.what());
      throw;
    } catch (...) {
      turn.failed("an exception that is not a std::exception");
      throw;
    }
  }

 private:
  friend Derived;
  Turns() = default;

  /// Turns are numbered within the one around them, which may be a rank's alone: its function has failed, and the others' don't run.
  struct Inside {
    explicit Inside(Turns& it) : turns(it), name(it.around_ + std::to_string(it.num_turns_++)), around(std::exchange(it.around_, name + ".")), num_turns(std::exchange(it.num_turns_, 0)) {}
    ~Inside() {
      turns.around_ = around;
      turns.num_turns_ = num_turns;
    }
    Inside(Inside const&) = delete;
    Inside& operator=(Inside const&) = delete;
    Turns& turns;
    std::string name, around;
    std::size_t num_turns;
  };

  std::string around_;
  std::size_t num_turns_ = 0;
};

}  // namespace fabric
}  // namespace weft
