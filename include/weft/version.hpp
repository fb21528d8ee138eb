// version.hpp -- which weft this is.
// In: nothing. Out: WEFT_VERSION_* for the preprocessor, weft::version for programs.
#pragma once

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0

#include <string_view>

#define WEFT_DETAIL_TEXT_OF(Value) #Value
#define WEFT_DETAIL_TEXT(Value) WEFT_DETAIL_TEXT_OF(Value)

namespace weft::inline v0 {

inline constexpr std::string_view version = WEFT_DETAIL_TEXT(WEFT_VERSION_MAJOR) "." WEFT_DETAIL_TEXT(
    WEFT_VERSION_MINOR) "." WEFT_DETAIL_TEXT(WEFT_VERSION_PATCH);

}  // namespace weft

#undef WEFT_DETAIL_TEXT
#undef WEFT_DETAIL_TEXT_OF
