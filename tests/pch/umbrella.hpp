// umbrella.hpp -- weft.hpp, compiled once for all programs of a build with tests.
#include <weft/weft.hpp>
