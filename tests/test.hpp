// test.hpp -- the precompiled header of the torch tests.
// In: torch, c10d, Catch2. Out: all of them at once, in the only order that works.
#ifndef WEFT_TESTS_TEST_HPP
#define WEFT_TESTS_TEST_HPP

#include <torch/torch.h>
#include <torch/version.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

// c10 has a CHECK of its own, which aborts; the tests mean Catch2's.
#undef CHECK
#include <catch2/catch_all.hpp>

#endif
