// activation/recompute_scope.hpp -- a part of forward that runs again, in backward.
// In: the scope of a re-run. Out: a yes or no, for what belongs to a model's own forward alone.
#pragma once

namespace weft::inline v0::activation {
namespace detail {

[[gnu::visibility("default")]] inline constinit thread_local int recomputations = 0;

}  // namespace detail

/// Of this thread. A re-run is there for the tensors that it saves: its graph is never gone through, so it needs no
/// backward hooks, it is no pass of its own, and its model is not running.
inline bool is_recomputing() noexcept { return detail::recomputations > 0; }

class [[nodiscard]] RecomputeScope {
 public:
  RecomputeScope() noexcept { ++detail::recomputations; }
  ~RecomputeScope() { --detail::recomputations; }
  RecomputeScope(RecomputeScope const&) = delete;
  RecomputeScope& operator=(RecomputeScope const&) = delete;
};

}  // namespace weft::activation
