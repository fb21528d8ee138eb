// fabric/rank_zero_first.hpp -- rank 0 first, then the others.
// In: something that one rank should have done before the others do it: a download, a cache. Out: what it returned, on
// each rank.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include <weft/comm/communicator.hpp>
#include <weft/comm/rank_zero_first.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0 {

struct FirstOptions {
  bool local = false;  // local rank 0 of each node goes first, not rank 0 of the world: for what nodes don't share
  std::chrono::milliseconds limit{};  // how long the others wait; 0: LaunchOptions::collective_timeout
};

namespace fabric {

/// The part of Fabric in which one rank goes first.
template <class Derived>
class RankZeroFirst {
 public:
  /// Calls `function` on rank 0, then on the others, and returns what it returns. If rank 0's throws, the others throw
  /// an error that says what, and don't call theirs. All ranks call alike; collective calls inside of it are errors.
  ///
  ///   auto text = fabric.rank_zero_first([] { return download_unless_there("corpus.txt"); });
  ///
  /// A function, not a guard: a guard's destructor would not know what was thrown.
  template <class Function>
    requires std::invocable<Function&>
  std::invoke_result_t<Function&> rank_zero_first(Function&& function, FirstOptions const& options = {}) {
    auto& session = static_cast<Derived&>(*this).session();
    if (session.joined)
      fail<CommunicationError>(
          "weft: rank_zero_first: inside of fabric.join ranks that are through would be missing: call it before or "
          "after the join");
    Inside const inside(*this);
    comm::RankZeroFirst const call(session, "rank_zero_first", options.local, inside.name);
    if (!call.has_others()) return std::invoke(function);
    if (!call.is_first()) {
      call.wait(options.limit);
      return std::invoke(function);
    }
    try {
      std::vector<comm::Communicator*> groups{session.world.get()};
      if (session.mesh)
        for (auto const& group : session.mesh->groups())
          if (group && group != session.world) groups.push_back(group.get());
      std::deque<comm::Communicator::Closed> alone;
      for (auto* const group : groups)
        alone.emplace_back(*group,
                           "inside of rank_zero_first, where the other ranks wait for this one to be through; make the "
                           "call after it");
      if constexpr (std::is_void_v<std::invoke_result_t<Function&>>) {
        std::invoke(function);
        call.done();
      } else {
        auto&& result = std::invoke(function);
        call.done();
        return std::forward<std::invoke_result_t<Function&>>(result);
      }
    } catch (c10::Error const& error) {
      call.failed(error.what_without_backtrace());
      throw;
    } catch (std::exception const& error) {
      call.failed(error.what());
      throw;
    } catch (...) {
      call.failed("an exception that is not a std::exception");
      throw;
    }
  }

 private:
  friend Derived;
  RankZeroFirst() = default;

  /// Calls are numbered within the one around them, which may be a rank's alone: its function has failed, and the
  /// others' don't run.
  struct Inside {
    explicit Inside(RankZeroFirst& it)
        : mixin(it),
          name(it.around_ + std::to_string(it.num_calls_++)),
          around(std::exchange(it.around_, name + ".")),
          num_calls(std::exchange(it.num_calls_, 0)) {}
    ~Inside() {
      mixin.around_ = around;
      mixin.num_calls_ = num_calls;
    }
    Inside(Inside const&) = delete;
    Inside& operator=(Inside const&) = delete;
    RankZeroFirst& mixin;
    std::string name, around;
    std::size_t num_calls;
  };

  std::string around_;
  std::size_t num_calls_ = 0;
};

}  // namespace fabric
}  // namespace weft
