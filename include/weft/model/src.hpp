// model/src.hpp -- what the room model has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/model/activation_rules.ipp>
#include <weft/model/clip.ipp>
#include <weft/model/cut.ipp>
#include <weft/model/engine_stack.ipp>
#include <weft/model/equal_start.ipp>
#include <weft/model/members.ipp>
#include <weft/model/model.ipp>
#include <weft/model/module_watch.ipp>
#include <weft/model/parameter_table.ipp>
#include <weft/model/precision.ipp>
#include <weft/model/reduced_gradients.ipp>
#include <weft/model/setup.ipp>
