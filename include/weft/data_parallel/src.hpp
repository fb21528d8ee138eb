// data_parallel/src.hpp -- what the room data_parallel has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/data_parallel/ddp.ipp>
#include <weft/data_parallel/hooks.ipp>
#include <weft/data_parallel/join.ipp>
#include <weft/data_parallel/power_sgd.ipp>
#include <weft/data_parallel/reducer_engine.ipp>
#include <weft/data_parallel/replicas.ipp>
#include <weft/data_parallel/scatter.ipp>
