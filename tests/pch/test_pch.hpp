// Meson wants a precompiled header in a folder of its own.
#include "../test.hpp"
