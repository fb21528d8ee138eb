// comm/rank_zero_first.hpp -- one rank goes first.
// In: the store where ranks meet. Out: the others go when the first is through, and hear of it when it failed.
#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::comm {

/// [Note: ranks take turns by the store] Whoever waits by a collective can't be told why it waits in vain, and a
/// download may take longer than collectives should. So the first rank leaves word in the store, and the others look
/// there, by short questions: the connection is also NCCL's. If the first rank dies without a word, the launcher ends
/// the others, as it would end them anywhere.
class RankZeroFirst {
 public:
  /// `turn`: a name that no other turn has; all ranks number them alike.
  RankZeroFirst(Session const& session, char const* call, bool local, std::string const& turn);

  bool is_first() const { return is_first_; }
  bool has_others() const { return session_.world && !session_.alone && session_.ranks.world_size > 1; }

  /// In the first rank: it is through, or has failed with a message. A store that is gone does not hide why.
  void done() const { notify("done"); }
  void failed(std::string const& message) const noexcept {
    try {
      notify("failed: " + message);
    } catch (...) {
    }
  }

  /// In the others: until the first rank is through.
  void wait(std::chrono::milliseconds limit) const;

 private:
  std::string me() const {
    return core::message("weft: ", call_, ": rank ", session_.ranks.global_rank, " of ", session_.ranks.world_size);
  }
  void notify(std::string const& word) const {
    if (has_others()) session_.endpoint.store->set(key_, word);
  }

  Session const& session_;
  char const* call_;
  bool is_first_;
  std::string first_;
  std::string key_;
};

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/rank_zero_first.ipp>
#endif
