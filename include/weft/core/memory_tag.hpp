// core/memory_tag.hpp -- what a piece of memory is for.
// In: a tag set around an allocation. Out: the tag, for whoever counts on the thread that allocates. Nobody counting:
// two stores.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <string_view>
#include <utility>

namespace weft::inline v0::core {

enum class MemoryTag : unsigned char {
  rest,        // activations, buffers, whatever nobody named
  parameters,  // between steps
  gathered,    // parameters made whole to compute with
  gradients,   // as the optimizer sees them
  reduce,      // whole gradients on their way there, and what a backend receives meanwhile
  optimizer,   // states
};
inline constexpr std::size_t num_memory_tags = 6;

constexpr std::string_view name_of(MemoryTag tag) {
  return std::array<std::string_view, num_memory_tags>{
      "rest", "parameters", "gathered", "gradients", "reduce", "optimizer"}[static_cast<std::size_t>(tag)];
}

namespace detail {
[[gnu::visibility("default")]] inline constinit thread_local MemoryTag memory_tag = MemoryTag::rest;
}
inline MemoryTag memory_tag() { return detail::memory_tag; }

/// What this thread allocates in the scope has the tag; an inner scope's tag wins.
class [[nodiscard]] Tagged {
 public:
  explicit Tagged(MemoryTag tag) : before_(std::exchange(detail::memory_tag, tag)) {}
  ~Tagged() { detail::memory_tag = before_; }
  Tagged(Tagged const&) = delete;
  Tagged& operator=(Tagged const&) = delete;

 private:
  MemoryTag before_;
};

namespace detail {
[[gnu::visibility("default")]] inline std::atomic<void (*)(void const*, MemoryTag)> retag =
    nullptr;  // of whoever counts
}
/// What `data` was allocated for has come to an end; the memory goes on as something else.
inline void retag(void const* data, MemoryTag tag) {
  if (auto* const count = detail::retag.load(std::memory_order_relaxed)) count(data, tag);
}

}  // namespace weft::core
