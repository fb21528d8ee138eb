// comm/rank_zero_first.ipp -- definitions of comm/rank_zero_first.hpp.
#pragma once

#include <weft/comm/rank_zero_first.hpp>

#include <algorithm>
#include <cstddef>
#include <thread>

#include <weft/comm/communicator.hpp>
#include <weft/core/build.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE RankZeroFirst::RankZeroFirst(Session const& session, char const* call, bool local, std::string const& turn)
    : session_(session),
      call_(call),
      is_first_((local ? session.ranks.local_rank : session.ranks.global_rank) == 0),
      first_(local ? core::message("local rank 0 of node ", session.ranks.node_rank) : "rank 0"),
      key_(core::message("weft/turn/", turn, ", ", first_)) {}

WEFT_INLINE void RankZeroFirst::wait(std::chrono::milliseconds limit) const {
  using Clock = std::chrono::steady_clock;
  if (limit.count() <= 0) limit = session_.endpoint.timeout;
  auto const until = Clock::now() + limit;
  for (std::chrono::milliseconds pause{1}; !session_.endpoint.store->check({key_});
       pause = std::min(2 * pause, std::chrono::milliseconds(100))) {
    if (Clock::now() > until)
      fail<CommunicationError>(me(), " waited ", limit.count(), " ms for ", first_,
                               ", which is not through; pass a longer limit, or let it do less");
    std::this_thread::sleep_for(pause);
  }
  auto const bytes = session_.endpoint.store->get(key_);
  std::string const word(bytes.begin(), bytes.end());
  if (word != "done") fail<Error>(me(), " did not run, because ", first_, " ", word);
}

}  // namespace weft::comm
