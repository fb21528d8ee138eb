// core/build.hpp -- the two ways to build weft.
// In: WEFT_SEPARATE_COMPILATION, defined for all files of a program or for none. Out: WEFT_INLINE, with which
// definitions of plain functions begin.
//
// Header-only is the default: each header brings its definitions (x.ipp beside x.hpp), which are inline. With
// -DWEFT_SEPARATE_COMPILATION headers declare, and exactly one source file has #include <weft/src.hpp>, or the program
// links the library that weft's build files make of it. Files of both ways may stand in one program: a definition is
// the same in either.
#pragma once

#ifdef WEFT_SEPARATE_COMPILATION
#define WEFT_INLINE

namespace weft::inline v0 {

/// Defined where weft/src.hpp is included: a program that includes it nowhere, or twice, is told so by the linker.
[[gnu::visibility("hidden")]] extern char const include_weft_src_hpp_in_exactly_one_source_file;

namespace core {
[[gnu::used]] static char const* const separate_compilation = &include_weft_src_hpp_in_exactly_one_source_file;
}

}  // namespace weft
#else
#define WEFT_INLINE inline
#endif
