// launch/src.hpp -- what the room launch has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/launch/arrivals.ipp>
#include <weft/launch/cluster.ipp>
#include <weft/launch/devices.ipp>
#include <weft/launch/environment.ipp>
#include <weft/launch/launch_options.ipp>
#include <weft/launch/popen.ipp>
#include <weft/launch/processes.ipp>
#include <weft/launch/rendezvous.ipp>
#include <weft/launch/run.ipp>
#include <weft/launch/sessions.ipp>
#include <weft/launch/simulated.ipp>
#include <weft/launch/transfer.ipp>
#include <weft/launch/watchdog.ipp>
