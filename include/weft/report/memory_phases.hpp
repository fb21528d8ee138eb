// report/memory_phases.hpp -- which part of a step needs the most memory.
// In: scopes with names. Out: for each name the most bytes that tensors on the device held in it.
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include <weft/report/memory_summary.hpp>

namespace weft::inline v0::report {

/// It resets the peaks at each change of phase, so that elsewhere "at most" means: in the phase that runs. On the CPU a
/// MemoryCount has to live.
///
///   weft::report::MemoryPhases phases(fabric.device());
///   { auto const phase = phases.enter("forward"); loss = model(batch); }
///   fabric.print(phases.table());
class MemoryPhases {
 public:
  explicit MemoryPhases(c10::Device device = c10::kCPU) : device_(device) {}

  struct Peak {
    std::string name;
    std::size_t bytes = 0;
    std::size_t times = 0;
  };
  class [[nodiscard]] Scope {
   public:
    explicit Scope(MemoryPhases& phases) : phases_(phases) {}
    /// Throws if nothing counts any more; on the way out after an exception the phase stays unmeasured.
    ~Scope() noexcept(false) {
      if (std::uncaught_exceptions() == exceptions_) phases_.close_stretch();
      phases_.open_.pop_back();
    }
    Scope(Scope const&) = delete;
    Scope& operator=(Scope const&) = delete;

   private:
    MemoryPhases& phases_;
    int exceptions_ = std::uncaught_exceptions();
  };

  /// What an inner phase holds, the outer ones hold, too.
  Scope enter(std::string const& name);

  /// In the order in which phases were first entered; those that run, up to the last change.
  std::vector<Peak> const& peaks() const { return peaks_; }

  std::string table() const;

 private:
  void close_stretch();

  c10::Device device_;
  std::vector<Peak> peaks_;
  std::vector<std::size_t> open_;
};

}  // namespace weft::report

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/report/memory_phases.ipp>
#endif
