// unit/rerun.hpp -- a part of forward that runs again, in backward.
// In: the scope of a re-run. Out: a yes or no, for what belongs to a model's own forward alone.
#pragma once

namespace weft::inline v0::unit {
namespace detail {

[[gnu::visibility("default")]] inline constinit thread_local int reruns = 0;

}  // namespace detail

/// Of this thread. A re-run is there for the tensors that it saves: its graph is never gone through, so it needs no borders, it is no
/// pass of its own, and its model is not running.
inline bool is_rerun() noexcept { return detail::reruns > 0; }

class [[nodiscard]] Rerun {
 public:
  Rerun() noexcept { ++detail::reruns; }
  ~Rerun() { --detail::reruns; }
  Rerun(Rerun const&) = delete;
  Rerun& operator=(Rerun const&) = delete;
};

}  // namespace weft::unit
