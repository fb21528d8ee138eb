// launch/simulated.hpp -- a job of which one rank runs, in this process, and the others are not there.
// In: what launch was told. Out: the session of LaunchOptions::simulated_rank. Programs that name Simulated include
// this.
#pragma once

#include <memory>

#include <weft/comm/session.hpp>
#include <weft/comm/simulated.hpp>
#include <weft/launch/launch_options.hpp>
#include <weft/launch/sessions.hpp>

namespace weft::inline v0::launch {

std::shared_ptr<comm::Session> simulated_session(Machine const& machine, int world, LaunchOptions const& options);

}  // namespace weft::launch

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/simulated.ipp>
#endif
