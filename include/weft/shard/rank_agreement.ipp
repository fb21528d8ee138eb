// shard/rank_agreement.ipp -- definitions of shard/rank_agreement.hpp.
#pragma once

#include <weft/shard/rank_agreement.hpp>

#include <utility>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::shard {

WEFT_INLINE RankAgreement::RankAgreement(int global_rank, std::unique_ptr<comm::ConsistencyCheck> unused,
                                         std::unique_ptr<comm::ConsistencyCheck> order)
    : global_rank_(global_rank), unused_check_(std::move(unused)), order_check_(std::move(order)) {}

WEFT_INLINE void RankAgreement::agree_on_order(std::vector<std::size_t> const& order,
                                               std::function<std::string const&(std::size_t)> const& name_of) {
  if (order == agreed_order_) return;
  refuse_unknown();
  if (order_check_) {
    std::string mine;
    for (auto const b : order) mine += (mine.empty() ? "" : ", ") + name_of(b);
    if (auto const other = order_check_->differing(mine))
      fail<Error>("weft: rank ", global_rank_, " ran its units in the order ", mine, "; rank ", other->first,
                  " in the order ", other->second.empty() ? "(none yet)" : other->second,
                  ": what they gathered and reduced was not each other's; let all ranks run the same units in one "
                  "order (LaunchOptions::check_collectives finds the first call that differs)");
  }
  agreed_order_ = order;
}

WEFT_INLINE void RankAgreement::refuse_unknown() const {
  if (!unknown_parameter_) return;
  if (auto const name = unknown_parameter_(); !name.empty())
    fail<Error>("weft: rank ", global_rank_, ": parameter ", name,
                " was registered after setup, so it is neither sharded nor averaged nor in an optimizer of setup's; "
                "change the model before setup");
}

WEFT_INLINE void RankAgreement::agree_on_unused() {
  auto const mine = std::exchange(unused_, "");
  if (!mine.empty() && std::exchange(known_unused_, mine) != mine) refuse_unknown();
  if (!unused_check_) return;
  if (auto const other = unused_check_->differing(mine))
    fail<Error>("weft: rank ", global_rank_, ": no gradient arrived for ", mine.empty() ? "nothing" : mine,
                ", but on rank ", other->first, " for ", other->second.empty() ? "nothing" : other->second,
                ": the ranks' losses use different parameters, which sharding can't average; let every rank use them "
                "(a term times 0 is enough)");
}

}  // namespace weft::shard
