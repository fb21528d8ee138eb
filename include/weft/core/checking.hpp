// core/checking.hpp -- whether this is the checking grade.
// In: the build option -Dchecking=true, which defines WEFT_CHECKING. Out: the default of
// LaunchOptions::check_collectives.
#pragma once

namespace weft::inline v0::core {

#ifdef WEFT_CHECKING
inline constexpr bool checking_grade = true;
#else
inline constexpr bool checking_grade = false;
#endif

}  // namespace weft::core
