// comm/src.hpp -- what the room comm has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/comm/autograd.ipp>
#include <weft/comm/autograd_node.ipp>
#include <weft/comm/backend.ipp>
#include <weft/comm/call_check.ipp>
#include <weft/comm/communicator.ipp>
#include <weft/comm/consistency_check.ipp>
#include <weft/comm/device_mesh.ipp>
#include <weft/comm/exchange.ipp>
#include <weft/comm/gloo.ipp>
#include <weft/comm/mechanism_context.ipp>
#include <weft/comm/pending.ipp>
#include <weft/comm/rank_zero_first.ipp>
#include <weft/comm/session.ipp>
#include <weft/comm/simulated.ipp>
#include <weft/comm/streams.ipp>
#include <weft/comm/trace.ipp>
#include <weft/comm/trace_table.ipp>
#include <weft/comm/traced_backend.ipp>
#include <weft/comm/values.ipp>
