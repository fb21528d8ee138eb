// core/checking.hpp -- whether this is the checking grade.
// In: WEFT_CHECKING, which the build option -Dchecking=true defines, in one file of the program or in all. Out: the
// default of LaunchOptions::check_collectives.
#pragma once

namespace weft::inline v0::core {

/// [Note: one grade for a program] A value of the process, not of a file: inline code that read the macro would be what
/// the linker happens to keep where some files define it and others don't. One file that does switches it on for all.
[[gnu::visibility("default")]] inline bool& checking_grade() noexcept {
  static bool is_on = false;
  return is_on;
}

#ifdef WEFT_CHECKING
[[gnu::used]] static bool const checking_grade_is_on = checking_grade() = true;
#endif

}  // namespace weft::core
