// src.hpp -- all that weft has compiled once.
// In: WEFT_SEPARATE_COMPILATION, and one source file that includes this. Out: the definitions of what headers declare.
#pragma once

#ifndef WEFT_SEPARATE_COMPILATION
#error \
    "weft: weft/src.hpp is for programs that are compiled with -DWEFT_SEPARATE_COMPILATION: define it for all files of the program, or leave this include out"
#endif

#include <weft/activation/src.hpp>
#include <weft/checkpoints/src.hpp>
#include <weft/comm/src.hpp>
#include <weft/core/src.hpp>
#include <weft/data/src.hpp>
#include <weft/data_parallel/src.hpp>
#include <weft/estimates/src.hpp>
#include <weft/fabric/src.hpp>
#include <weft/init/src.hpp>
#include <weft/launch/src.hpp>
#include <weft/model/src.hpp>
#include <weft/nn/src.hpp>
#include <weft/optim/src.hpp>
#include <weft/precision/src.hpp>
#include <weft/report/src.hpp>
#include <weft/shard/src.hpp>
#include <weft/unit/src.hpp>
